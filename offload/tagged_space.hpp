// The storage tier with a tag for every block: a read returns the last written bytes, or fails.
//
// A range (such as a home of model state) is cut into blocks of equal size; the last one may be
// shorter. Transfers begin and end at block borders of one range. The tag of a block is the
// XXH3-128 of its bytes (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seeded with {run, key of
// the range, block number, number of writes}. Tags lie in memory and take 20 bytes a block. They
// detect flipped bits, pages of zeros, and torn, stale and misdirected blocks when these are read.
//
// A block that fails is read once more, alone. If it is right then, a line goes to the log. If it
// fails again, the read throws IntegrityError. Reading a block that was never written is
// InternalError.
//
// Hashing is cheapest on a thread that uses the bytes anyway, while they are in its cache
// (TagsBy::kCaller); hashing bytes that are not cached takes four times as long. Otherwise a write
// is hashed on the submitting thread, a storage lane's own. A read is hashed on one thread of this
// class, because the engine's completion thread must go on feeding the disk, and a lane's thread
// may be waiting for another lane that waits for this read.
//
// Threads: any thread may call any function except add_range(). Two transfers in flight may share a
// block only if both are reads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/run_id.hpp"
#include "offload/integrity_error.hpp"
#include "offload/striped_space.hpp"

namespace sluice::offload {

struct BlockTag {
  std::array<std::uint8_t, 16> digest{};  // XXH3-128, canonical (big-endian)
  std::uint32_t version = 0;              // number of writes; 0: never written
  bool operator==(const BlockTag&) const = default;
};

// Returns the tag of a block's bytes; key and block identify it (see TaggedSpace).
BlockTag tag_of(const RunId& run, std::uint64_t key, std::uint64_t block, std::uint32_t version,
                const void* data, std::uint64_t bytes);

struct TagCounters {
  std::uint64_t hashed_bytes = 0;
  double hash_seconds = 0;          // of all hashing threads, including time off the CPU
  std::uint64_t reread_blocks = 0;  // wrong at first, right when read again
};

// The side that verifies reads and tags writes. kCaller: the caller calls verify() before it uses
// the bytes of a read, and tag() before it submits a write.
enum class TagsBy : std::uint8_t { kSpace, kCaller };

class TaggedSpace {
 public:
  struct Range {
    std::string name;       // for messages: "moment1 of unit 3"
    std::uint64_t key = 0;  // equal for equal content in every run
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
    std::uint64_t block_bytes = 0;
  };
  using RangeId = std::uint32_t;
  static constexpr std::uint64_t kMostBlockBytes = 1 * kMiB;

  // `space` must outlive this object. run: seeds the tags.
  TaggedSpace(StripedSpace& space, const RunId& run);
  // Waits for reads in flight.
  ~TaggedSpace();
  TaggedSpace(const TaggedSpace&) = delete;
  TaggedSpace& operator=(const TaggedSpace&) = delete;

  // Set-up only. A known range (same key, place and blocks) keeps its id and its tags.
  // InternalError: a range outside the space, or a block size of 0 or above kMostBlockBytes.
  RangeId add_range(const Range& range);

  // Moves whole blocks [offset, offset + bytes) of the range. `done` runs once, on another thread,
  // with the first error or null. Errors: StripedSpace's, IntegrityError, and InternalError for a
  // block that was never written. needed_by: as in StorageRequest.
  void submit(StorageOp op, RangeId range, std::uint64_t offset_bytes, void* data,
              std::uint64_t bytes, StorageEngine::Callback done, std::uint64_t needed_by = 0,
              TagsBy tags_by = TagsBy::kSpace);
  // Submits, waits, and throws the error.
  void transfer(StorageOp op, RangeId range, std::uint64_t offset_bytes, void* data,
                std::uint64_t bytes);

  // Whole blocks of a range, and the memory of their bytes.
  struct Part {
    RangeId range = 0;
    std::uint64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  // For TagsBy::kCaller, once per block of a transfer. verify() takes reads that have ended; it
  // reads a wrong block again before it returns, with the errors of submit(). tag() takes writes
  // that are not submitted yet; no thread may read these blocks from storage before they are
  // written. Neither checks for cut blocks; a caller that splits transfers calls
  // check_whole_blocks() first.
  void verify(std::span<const Part> parts);
  void tag(std::span<const Part> parts);
  // Throws InternalError if the part cuts a block.
  void check_whole_blocks(const Part& part) const;

  // For a log of the state on storage: a range, and its tags in block order. No transfer of it may
  // be in flight. Another process verifies them with this run's id and the range's key.
  const Range& range(RangeId range) const;
  std::span<const BlockTag> tags(RangeId range) const;

  TagCounters counters() const;
  StripedSpace& space() { return space_; }
  const RunId& run() const { return run_; }

 private:
  struct Tagged;
  class Verifier;
  Tagged& tagged_range(const Part& part) const;
  bool is_whole_blocks(const Part& part) const;
  // Like verify() and tag(), for one part and without counting.
  void verify_blocks(const Part& part);
  void tag_blocks(const Part& part);
  bool is_right(const Tagged& tagged, std::uint64_t block, const std::byte* data,
                std::uint64_t bytes) const;
  void read_again(const Tagged& tagged, std::uint64_t block, std::byte* data, std::uint64_t bytes);
  void count_hashing(std::span<const Part> parts, std::int64_t begin_ns);

  StripedSpace& space_;
  const RunId run_;
  std::atomic<std::uint64_t> hashed_bytes_ = 0;
  std::atomic<std::uint64_t> hash_ns_ = 0;
  std::atomic<std::uint64_t> reread_blocks_ = 0;
  std::vector<std::unique_ptr<Tagged>> ranges_;
  // Key: range key, offset, bytes and block bytes.
  std::map<std::array<std::uint64_t, 4>, RangeId> known_;
  std::unique_ptr<Verifier> verifier_;  // null in a space of no bytes
};

}  // namespace sluice::offload
