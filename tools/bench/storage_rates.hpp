// How fast a storage engine moves data through a small hot staging ring: what training does to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/storage_engine.hpp"
#include "offload/striped_space.hpp"

namespace sluice::bench {

// User and system time of the whole process so far.
double process_cpu_seconds();

// The memory that blocks pass through: huge pages by madvise, as in the pinned arena (a block of 4
// KiB pages costs the kernel a segment for each page), filled with numbers that no storage
// compresses away.
class StagingRing {
 public:
  // Rounded up to 2 MiB. OutOfMemory (tier pinned) where the system has none.
  explicit StagingRing(std::uint64_t bytes);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // Of it, in huge pages now, as the kernel tells it (/proc/self/smaps); 0 where it does not.
  std::uint64_t huge_bytes() const;

 private:
  std::byte* allocation_ = nullptr;
  std::uint64_t allocated_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

struct StorageLoad {
  offload::StorageFileId file = 0;
  std::uint64_t file_bytes = 0;  // the region used; a multiple of block_bytes
  std::uint64_t block_bytes = 512 * 1024;
  std::uint32_t depth = 16;       // requests under way; depth * block_bytes is the staging ring
  double seconds = 1.0;           // an upper bound; ends earlier when bytes have moved
  std::uint64_t bytes = 1 << 30;  // to move in all
};

enum class StorageMix : std::uint8_t { kRead, kWrite, kDuplex };

struct StorageRate {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // of the whole process, user and system
  double bytes_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
  double cpu_s_per_byte() const { return bytes > 0 ? cpu_seconds / static_cast<double>(bytes) : 0; }
};

// Sequential blocks, each slot of the ring on its own block; duplex: each slot in turn reads and
// writes, so that as many bytes go either way: both over the whole region, half of it apart, as fio
// does (a region below six rings: reads in its first half, writes in its second). staging: depth *
// block_bytes, page-aligned, registered by the caller. Throws the first request's error;
// TimeoutError.
StorageRate measure_storage(offload::StorageEngine& engine, const StorageLoad& load, StorageMix mix,
                            void* staging);

// The space's blocks in order, round and round, each read and then written back where it was: what
// lies there stays. Half of the slots begin one request later, so that as many read as write.
// load.file and load.file_bytes mean nothing here; a space of whole blocks is used up to its last.
// staging and errors as above.
StorageRate measure_rewriting(offload::StripedSpace& space, const StorageLoad& load, void* staging);

// Bytes that one core tags in a second (offload/tagged_space.hpp), in blocks of block_bytes,
// walking through `ring` for about `seconds` of its own time.
double measure_tags(const StagingRing& ring, std::uint64_t block_bytes, double seconds);

// The mean time of `request` at scattered offsets within file_bytes, one after another: from asking
// to the asking thread's waking. For about `seconds`, and at least a few times.
double measure_transfer_alone(offload::StorageEngine& engine, offload::StorageRequest request,
                              std::uint64_t file_bytes, double seconds);

}  // namespace sluice::bench
