// The memory of one GPU: a cap, physical blocks, address ranges, mappings and raw buffers.
//
// A block is one handle of the driver and is mapped whole. Its memory counts against the cap until
// it is released and its last mapping is gone, because the driver keeps it that long. A released
// range keeps its addresses likewise. Thread-safe. Streams are not considered here: callers order
// use and release.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "base/mutex.hpp"
#include "device/cuda/cuda_context.hpp"
#include "device/device.hpp"

namespace sluice::device {

class CudaMemory {
 public:
  // An allocation with its handle; data is null for a block.
  struct Placement {
    void* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t handle = 0;
  };

  CudaMemory(std::shared_ptr<const CudaContext> context, std::uint64_t capacity_bytes);
  // Returns leaked resources to the driver.
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::uint64_t granularity_bytes() const { return granularity_bytes_; }

  // These throw DeviceError, OutOfMemory (of the cap or of the GPU) and InternalError, as Device.
  Placement reserve(std::uint64_t bytes);
  Placement create_block(std::uint64_t bytes);
  Placement map(std::uint64_t range_handle, std::uint64_t offset_bytes, std::uint64_t block_handle);
  Placement allocate(std::uint64_t bytes);

  void release_range(std::uint64_t handle) noexcept;
  void release_block(std::uint64_t handle) noexcept;
  void unmap(std::uint64_t handle) noexcept;
  void deallocate(std::uint64_t handle) noexcept;

  // The bytes, allocations and mappings of DeviceCounters.
  DeviceCounters counters() const;

 private:
  struct Block {
    CUmemGenericAllocationHandle handle;
    std::uint64_t bytes;
    std::uint32_t mapping_count;
    bool released;
  };
  struct MappedPart {
    std::uint64_t bytes;
    std::uint64_t block_handle;
  };
  struct Range {
    CUdeviceptr base;
    std::uint64_t bytes;
    std::map<std::uint64_t, MappedPart> parts;  // by offset; disjoint
    bool released;
  };
  struct MappingPlace {
    std::uint64_t range_handle;
    std::uint64_t offset_bytes;
  };
  struct Buffer {
    CUdeviceptr data;
    std::uint64_t bytes;
  };

  void charge(std::uint64_t bytes) SLUICE_REQUIRES(mutex_);
  // Undoes a charge and throws the error of the status.
  [[noreturn]] void refuse(std::uint64_t bytes, CUresult status, const char* doing)
      SLUICE_REQUIRES(mutex_);
  static void check_place(const Range& range, std::uint64_t offset_bytes, std::uint64_t bytes);
  CUresult map_with_access(CUdeviceptr place, const Block& block) const;
  void forget_block_if_unused(std::uint64_t handle) noexcept SLUICE_REQUIRES(mutex_);
  void free_range_if_unused(std::uint64_t handle) noexcept SLUICE_REQUIRES(mutex_);

  const std::shared_ptr<const CudaContext> context_;
  const CudaDriver& driver_;
  const std::uint64_t capacity_bytes_;
  std::uint64_t granularity_bytes_ = 0;

  mutable Mutex mutex_;
  DeviceCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t next_handle_ SLUICE_GUARDED_BY(mutex_) = 1;
  std::unordered_map<std::uint64_t, Block> blocks_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Range> ranges_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, MappingPlace> mappings_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Buffer> buffers_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::device
