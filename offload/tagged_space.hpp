// The storage tier with a tag for every block: a read gives what was last written there, or fails.
//
// A range (a home of model state, say) is cut into blocks of equal bytes, its last one shorter
// where it ends earlier; transfers begin and end at blocks of one range, however they are cut. A
// block's tag is the XXH3-128 of its bytes (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seeded
// with {run, key of the range, number of the block, how often it was written}, and lies in memory:
// 20 bytes a block. So bits that flipped, pages of zeros, torn, stale and misdirected blocks are
// all found when they are read.
//
// A block that is wrong is read once more, alone. Right then: a line in the log. Wrong again:
// IntegrityError. Reading a block that was never written is InternalError.
//
// Where the hashing runs: best with whoever works on the bytes anyway, while they are in its cache
// (TagsBy::kCaller): hashing what memory must first be asked for takes four times as long. Else
// what is written is hashed on the thread that submits it, a storage lane's own, which has nothing
// else to do; what was read, on one thread of this class between the engine's completion thread,
// which must go on feeding the device, and the caller's callback. (A lane's thread cannot: it may
// be waiting for another lane that waits for this read.)
//
// Threads: all but add_range() from any thread. Two transfers under way share a block only if both
// are reads.
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
  std::uint32_t version = 0;              // writes so far; 0: never written
  bool operator==(const BlockTag&) const = default;
};

// The tag of a block's bytes; key and block: which it is (TaggedSpace).
BlockTag tag_of(const RunId& run, std::uint64_t key, std::uint64_t block, std::uint32_t version,
                const void* data, std::uint64_t bytes);

struct TagCounters {
  std::uint64_t hashed_bytes = 0;
  double hash_seconds = 0;  // of all threads that hash, both directions; if put off, that too
  std::uint64_t reread_blocks = 0;  // that were wrong once and right then
};

// Who verifies what a read brings and tags what a write takes: the space, or its caller by verify()
// before it uses the bytes, and by tag() before it submits them.
enum class TagsBy : std::uint8_t { kSpace, kCaller };

class TaggedSpace {
 public:
  struct Range {
    std::string name;       // for messages: "moment1 of unit 3"
    std::uint64_t key = 0;  // the same for the same content in every run
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
    std::uint64_t block_bytes = 0;
  };
  using RangeId = std::uint32_t;
  static constexpr std::uint64_t kMostBlockBytes = 1 * kMiB;

  // The space must outlive it. run: seeds the tags.
  TaggedSpace(StripedSpace& space, const RunId& run);
  // Waits for reads under way.
  ~TaggedSpace();
  TaggedSpace(const TaggedSpace&) = delete;
  TaggedSpace& operator=(const TaggedSpace&) = delete;

  // Set-up only. A range that is known already (same key, place and blocks) keeps its id and its
  // tags. InternalError: outside the space, or blocks of no bytes or too many.
  RangeId add_range(const Range& range);

  // Moves [offset, offset + bytes) of the range, whole blocks; `done` runs once, not on the calling
  // thread, with the first error or null. Errors: StripedSpace's, IntegrityError, and InternalError
  // for a block that was never written. needed_by: as in StorageRequest.
  void submit(StorageOp op, RangeId range, std::uint64_t offset_bytes, void* data,
              std::uint64_t bytes, StorageEngine::Callback done, std::uint64_t needed_by = 0,
              TagsBy tags_by = TagsBy::kSpace);
  // Submits and waits; throws the error.
  void transfer(StorageOp op, RangeId range, std::uint64_t offset_bytes, void* data,
                std::uint64_t bytes);

  // Whole blocks of a range, and the memory that they came to or go from.
  struct Part {
    RangeId range = 0;
    std::uint64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  // TagsBy::kCaller, once for each block of a transfer. verify(): of reads that have ended; a wrong
  // block is read again before it returns; errors as submit() gives them. tag(): of writes not yet
  // submitted; nobody reads these blocks from storage until they are written.
  // For each block neither looks whether the part cuts one, so who takes transfers apart asks
  // first.
  void verify(std::span<const Part> parts);
  void tag(std::span<const Part> parts);
  // InternalError where it cuts a block.
  void check_whole_blocks(const Part& part) const;

  // For a log of what lies on storage: a range, and its tags in block order. No transfer of it is
  // under way. Another process verifies them with this run's id and the range's key.
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
  // Of one part; hashing not counted.
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
  // By key, offset, bytes and block bytes.
  std::map<std::array<std::uint64_t, 4>, RangeId> known_;
  std::unique_ptr<Verifier> verifier_;  // null in a space of no bytes
};

}  // namespace sluice::offload
