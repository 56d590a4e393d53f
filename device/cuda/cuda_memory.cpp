#include "device/cuda/cuda_memory.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"

namespace sluice::device {
namespace {

// Properties of GPU memory that is not shared with other processes.
CUmemAllocationProp block_properties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

void* as_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

CudaMemory::CudaMemory(std::shared_ptr<const CudaContext> context, std::uint64_t capacity_bytes)
    : context_(std::move(context)), driver_(context_->driver()), capacity_bytes_(capacity_bytes) {
  const CurrentContext current(*context_);
  const CUmemAllocationProp properties = block_properties(context_->device());
  std::size_t granularity = 0;
  driver_.check(driver_.cuMemGetAllocationGranularity(&granularity, &properties,
                                                      CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                "asking for the granularity of device memory");
  // The rest of Sluice plans with pages of 2 MiB; a driver may need larger ones.
  granularity_bytes_ = round_up(std::max<std::uint64_t>(granularity, 1), kPageBytes);
}

CudaMemory::~CudaMemory() {
  const auto undo = [this](const char* doing, auto release) {
    release_in_context(*context_, doing, release);
  };
  // clang 14 cannot capture structured bindings.
  for (const auto& by_handle : ranges_) {
    const auto& range = by_handle.second;
    for (const auto& [offset, part] : range.parts) {
      undo("unmapping device memory",
           [at = range.base + offset, bytes = part.bytes](const CudaDriver& driver) {
             return driver.cuMemUnmap(at, bytes);
           });
    }
    undo("giving device addresses back", [&](const CudaDriver& driver) {
      return driver.cuMemAddressFree(range.base, range.bytes);
    });
  }
  for (const auto& [handle, block] : blocks_) {
    if (block.released) continue;
    undo("releasing device memory",
         [at = block.handle](const CudaDriver& driver) { return driver.cuMemRelease(at); });
  }
  for (const auto& [handle, buffer] : buffers_) {
    undo("freeing device memory",
         [at = buffer.data](const CudaDriver& driver) { return driver.cuMemFree(at); });
  }
}

void CudaMemory::charge(std::uint64_t bytes) {
  const std::uint64_t available = capacity_bytes_ - counters_.live_bytes;
  if (bytes > available) throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes, available);
  counters_.live_bytes += bytes;
}

void CudaMemory::refuse(std::uint64_t bytes, CUresult status, const char* doing) {
  counters_.live_bytes -= bytes;
  if (status != CUDA_ERROR_OUT_OF_MEMORY) driver_.fail(status, doing);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  driver_.check(driver_.cuMemGetInfo(&free_bytes, &total_bytes), "asking for free device memory");
  throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes,
                    std::min<std::uint64_t>(free_bytes, capacity_bytes_ - counters_.live_bytes));
}

CudaMemory::Placement CudaMemory::reserve(std::uint64_t bytes) {
  SLUICE_CHECK_MSG(bytes > 0 && bytes % granularity_bytes_ == 0,
                   "an address range is a positive multiple of the granularity");
  const CurrentContext current(*context_);
  const MutexLock lock(mutex_);
  const std::uint64_t handle = next_handle_++;
  Range& range = ranges_.emplace(handle, Range{0, bytes, {}, false}).first->second;
  const CUresult status = driver_.cuMemAddressReserve(&range.base, bytes, granularity_bytes_, 0, 0);
  if (status != CUDA_SUCCESS) {
    ranges_.erase(handle);
    driver_.fail(status, "reserving " + std::to_string(bytes) + " bytes of device addresses");
  }
  return {as_pointer(range.base), bytes, handle};
}

CudaMemory::Placement CudaMemory::create_block(std::uint64_t bytes) {
  SLUICE_CHECK_MSG(bytes > 0 && bytes % granularity_bytes_ == 0,
                   "a physical block is a positive multiple of the granularity");
  const CurrentContext current(*context_);
  const CUmemAllocationProp properties = block_properties(context_->device());
  const MutexLock lock(mutex_);
  const std::uint64_t handle = next_handle_++;
  Block& block = blocks_.emplace(handle, Block{0, bytes, 0, false}).first->second;
  try {
    charge(bytes);
    const CUresult status = driver_.cuMemCreate(&block.handle, bytes, &properties, 0);
    if (status != CUDA_SUCCESS) refuse(bytes, status, "creating a block of device memory");
  } catch (...) {
    blocks_.erase(handle);
    throw;
  }
  ++counters_.allocation_calls;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.live_bytes);
  return {nullptr, bytes, handle};
}

void CudaMemory::check_place(const Range& range, std::uint64_t offset_bytes, std::uint64_t bytes) {
  SLUICE_CHECK_MSG(offset_bytes <= range.bytes && bytes <= range.bytes - offset_bytes,
                   "a mapping ends within its range");
  const auto next = range.parts.lower_bound(offset_bytes);
  SLUICE_CHECK_MSG(next == range.parts.end() || next->first >= offset_bytes + bytes,
                   "a mapping overlaps a live one of its range");
  if (next == range.parts.begin()) return;
  const auto& [offset, part] = *std::prev(next);
  SLUICE_CHECK_MSG(offset + part.bytes <= offset_bytes,
                   "a mapping overlaps a live one of its range");
}

CUresult CudaMemory::map_with_access(CUdeviceptr place, const Block& block) const {
  CUresult status = driver_.cuMemMap(place, block.bytes, 0, block.handle, 0);
  if (status != CUDA_SUCCESS) return status;
  CUmemAccessDesc access{};
  access.location = block_properties(context_->device()).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  status = driver_.cuMemSetAccess(place, block.bytes, &access, 1);
  if (status != CUDA_SUCCESS) {
    context_->warn_unless_success(driver_.cuMemUnmap(place, block.bytes),
                                  "unmapping device memory that cannot be accessed");
  }
  return status;
}

CudaMemory::Placement CudaMemory::map(std::uint64_t range_handle, std::uint64_t offset_bytes,
                                      std::uint64_t block_handle) {
  const CurrentContext current(*context_);
  const MutexLock lock(mutex_);
  const auto range_entry = ranges_.find(range_handle);
  const auto block_entry = blocks_.find(block_handle);
  SLUICE_CHECK_MSG(range_entry != ranges_.end() && block_entry != blocks_.end(),
                   "the range and the block must be of this device");
  Range& range = range_entry->second;
  Block& block = block_entry->second;
  SLUICE_CHECK_MSG(offset_bytes % granularity_bytes_ == 0,
                   "a mapping starts at a multiple of the granularity");
  check_place(range, offset_bytes, block.bytes);

  const std::uint64_t handle = next_handle_++;
  const auto part = range.parts.emplace(offset_bytes, MappedPart{block.bytes, block_handle}).first;
  try {
    mappings_.emplace(handle, MappingPlace{range_handle, offset_bytes});
    driver_.check(map_with_access(range.base + offset_bytes, block), "mapping device memory");
  } catch (...) {
    mappings_.erase(handle);
    range.parts.erase(part);
    throw;
  }
  ++block.mapping_count;
  ++counters_.map_calls;
  return {as_pointer(range.base + offset_bytes), block.bytes, handle};
}

void CudaMemory::unmap(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  const auto mapping = mappings_.find(handle);
  const MappingPlace place = mapping->second;
  Range& range = ranges_.find(place.range_handle)->second;
  const auto part = range.parts.find(place.offset_bytes);
  const std::uint64_t block_handle = part->second.block_handle;
  mappings_.erase(mapping);
  bool undone = false;
  release_in_context(*context_, "unmapping device memory", [&](const CudaDriver& driver) {
    const CUresult status = driver.cuMemUnmap(range.base + place.offset_bytes, part->second.bytes);
    undone = status == CUDA_SUCCESS;
    return status;
  });
  // If unmapping failed, the memory is still mapped: the block stays charged, the addresses taken.
  if (!undone) return;
  range.parts.erase(part);
  --blocks_.find(block_handle)->second.mapping_count;
  forget_block_if_unused(block_handle);
  free_range_if_unused(place.range_handle);
}

void CudaMemory::release_block(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  Block& block = blocks_.find(handle)->second;
  release_in_context(*context_, "releasing device memory",
                     [&](const CudaDriver& driver) { return driver.cuMemRelease(block.handle); });
  block.released = true;
  forget_block_if_unused(handle);
}

void CudaMemory::forget_block_if_unused(std::uint64_t handle) noexcept {
  const auto entry = blocks_.find(handle);
  if (!entry->second.released || entry->second.mapping_count > 0) return;
  counters_.live_bytes -= entry->second.bytes;
  blocks_.erase(entry);
}

void CudaMemory::release_range(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  ranges_.find(handle)->second.released = true;
  free_range_if_unused(handle);
}

void CudaMemory::free_range_if_unused(std::uint64_t handle) noexcept {
  const auto entry = ranges_.find(handle);
  if (!entry->second.released || !entry->second.parts.empty()) return;
  release_in_context(*context_, "giving device addresses back", [&](const CudaDriver& driver) {
    return driver.cuMemAddressFree(entry->second.base, entry->second.bytes);
  });
  ranges_.erase(entry);
}

CudaMemory::Placement CudaMemory::allocate(std::uint64_t bytes) {
  SLUICE_CHECK_MSG(bytes > 0, "a buffer has at least one byte");
  const CurrentContext current(*context_);
  const MutexLock lock(mutex_);
  const std::uint64_t handle = next_handle_++;
  Buffer& buffer = buffers_.emplace(handle, Buffer{0, bytes}).first->second;
  try {
    charge(bytes);
    const CUresult status = driver_.cuMemAlloc(&buffer.data, bytes);
    if (status != CUDA_SUCCESS) refuse(bytes, status, "allocating device memory");
  } catch (...) {
    buffers_.erase(handle);
    throw;
  }
  ++counters_.allocation_calls;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.live_bytes);
  return {as_pointer(buffer.data), bytes, handle};
}

void CudaMemory::deallocate(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  const auto entry = buffers_.find(handle);
  release_in_context(*context_, "freeing device memory", [&](const CudaDriver& driver) {
    return driver.cuMemFree(entry->second.data);
  });
  counters_.live_bytes -= entry->second.bytes;
  buffers_.erase(entry);
}

DeviceCounters CudaMemory::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

}  // namespace sluice::device
