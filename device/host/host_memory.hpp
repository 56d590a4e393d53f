// The memory of a host device: a cap, physical blocks in one memfd, address ranges, raw buffers.
//
// A block is one extent of the memfd. If no freed extent fits, the sparse file grows, even beyond
// the cap. So the cap cannot fail because of fragmentation: only bytes in use count, as on a GPU. A
// released block keeps its memory until its last mapping is gone, and a released range keeps its
// addresses likewise. Thread-safe. Streams are not considered here: callers order use and release.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "device/device.hpp"

namespace sluice::device {

class HostMemory {
 public:
  // An allocation with its handle; data is null for a block.
  struct Placement {
    void* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t handle = 0;
  };
  // Bytes by their physical position, so that aliases compare equal.
  struct PhysicalSpan {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  HostMemory(std::uint64_t capacity_bytes, std::uint64_t granularity_bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  Placement reserve(std::uint64_t bytes);
  Placement create_block(std::uint64_t bytes);
  Placement map(std::uint64_t range_handle, std::uint64_t offset_bytes, std::uint64_t block_handle);
  Placement allocate(std::uint64_t bytes);
  Placement register_host(void* data, std::uint64_t bytes);

  void release_range(std::uint64_t handle) noexcept;
  void release_block(std::uint64_t handle) noexcept;
  void unmap(std::uint64_t handle) noexcept;
  void deallocate(std::uint64_t handle) noexcept;
  void unregister_host(std::uint64_t handle) noexcept;

  // All of DeviceCounters except the copies.
  DeviceCounters counters() const;

  // Appends the physical spans of [data, data+bytes). Throws DeviceError if a part of it lies in a
  // reserved range but is not mapped.
  void locate(const void* data, std::uint64_t bytes, std::vector<PhysicalSpan>& spans) const;

 private:
  // A part of the memfd, keyed by its offset; the extents tile the file.
  struct Extent {
    std::uint64_t bytes;
    bool free;
  };
  struct Block {
    std::uint64_t file_offset;
    std::uint64_t bytes;
    std::uint32_t mapping_count;
    bool released;
  };
  struct MappedPart {
    std::uint64_t bytes;
    std::uint64_t block_handle;
  };
  struct Range {
    std::byte* base;
    std::uint64_t bytes;
    std::map<std::uint64_t, MappedPart> parts;  // by offset; disjoint
    bool released;
  };
  struct MappingPlace {
    std::uint64_t range_handle;
    std::uint64_t offset_bytes;
  };
  struct Buffer {
    void* data;
    std::uint64_t bytes;
  };

  void charge(std::uint64_t bytes) SLUICE_REQUIRES(mutex_);  // throws OutOfMemory
  std::uint64_t take_extent(std::uint64_t bytes) SLUICE_REQUIRES(mutex_);
  void give_extent(std::uint64_t file_offset) noexcept SLUICE_REQUIRES(mutex_);
  void free_block(std::uint64_t handle) noexcept SLUICE_EXCLUDES(mutex_);
  void locate_in_range(const Range& range, std::uint64_t begin, std::uint64_t end,
                       std::vector<PhysicalSpan>& spans) const SLUICE_REQUIRES(mutex_);

  const std::uint64_t capacity_bytes_;
  const std::uint64_t granularity_bytes_;
  int file_ = -1;

  mutable Mutex mutex_;
  DeviceCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t registered_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_handle_ SLUICE_GUARDED_BY(mutex_) = 1;
  std::uint64_t file_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Extent> extents_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Block> blocks_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Range> ranges_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::uint64_t> range_by_base_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, MappingPlace> mappings_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Buffer> buffers_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::uint64_t> registered_
      SLUICE_GUARDED_BY(mutex_);  // begin to bytes; disjoint
};

}  // namespace sluice::device
