// The rate at which a storage engine moves data through a small hot staging ring, as in training.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/storage_engine.hpp"
#include "offload/striped_space.hpp"

namespace sluice::bench {

// User and system time of the whole process so far, in seconds.
double process_cpu_seconds();
// User and system time of the calling thread so far, in seconds.
double thread_cpu_seconds();

// The memory that blocks pass through. It has huge pages by madvise, as the pinned arena has: in
// 4 KiB pages a block costs the kernel a segment for each page. It is filled with random numbers,
// because storage may compress.
class StagingRing {
 public:
  // Rounds the size up to 2 MiB. Throws OutOfMemory (tier pinned) if the system has no memory.
  explicit StagingRing(std::uint64_t bytes);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // The bytes of it that are in huge pages now (/proc/self/smaps); 0 if the kernel does not say.
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
  double seconds = 1.0;           // an upper bound; ends earlier when all bytes have moved
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

// Moves sequential blocks; each slot of the ring works on its own block. In duplex mode each slot
// reads and writes in turn, so that equal numbers of bytes go both ways. Reads and writes both
// cover the whole region, half of it apart, as fio does. (In a region below six rings, reads use
// the first half and writes the second.) staging: depth * block_bytes, page-aligned, registered by
// the caller. Throws the first request's error; TimeoutError.
StorageRate measure_storage(offload::StorageEngine& engine, const StorageLoad& load, StorageMix mix,
                            void* staging);

// Reads the space's blocks in order, again and again, and writes each back unchanged. Half of the
// slots begin one request later, so that as many slots read as write. load.file and load.file_bytes
// are ignored; the space is used up to its last whole block. staging and errors as above.
StorageRate measure_rewriting(offload::StripedSpace& space, const StorageLoad& load, void* staging);

// Bytes per second that one core tags (offload/tagged_space.hpp) in blocks of block_bytes, while it
// walks through `ring` for about `seconds` of its own CPU time.
double measure_tags(const StagingRing& ring, std::uint64_t block_bytes, double seconds);

// The mean seconds of `request` at scattered offsets within file_bytes, one at a time, from its
// submission until the submitting thread wakes. Runs for about `seconds`, and at least a few times.
double measure_transfer_alone(offload::StorageEngine& engine, offload::StorageRequest request,
                              std::uint64_t file_bytes, double seconds);

}  // namespace sluice::bench
