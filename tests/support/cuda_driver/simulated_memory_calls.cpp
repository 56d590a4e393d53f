// The simulated driver's functions for memory.
#include <unistd.h>

#include <iterator>

#include "tests/support/cuda_driver/simulated_driver.hpp"

using sluice::simulated::Driver;
using sluice::simulated::Gpu;
using sluice::simulated::Memory;

namespace {

bool is_block_of_a_gpu(const CUmemAllocationProp* prop) {
  return prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

void drain_all(Driver& driver) {
  const std::lock_guard lock(driver.mutex);
  for (auto& [handle, stream] : driver.streams) stream.queue->wait_idle();
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemGetInfo", gpu);
  if (status != CUDA_SUCCESS) return status;
  *free = gpu->memory.free_bytes();
  *total = gpu->memory.capacity_bytes();
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* data, std::size_t bytes) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemAlloc", gpu);
  return status != CUDA_SUCCESS ? status : gpu->memory.allocate(data, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr data) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemFree", gpu);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  drain_all(Driver::instance());  // as the driver does
  const CUresult freed = gpu->memory.free(data);
  return freed != CUDA_SUCCESS ? freed : status;
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemGetAllocationGranularity", gpu);
  if (status != CUDA_SUCCESS) return status;
  if (!is_block_of_a_gpu(prop)) return CUDA_ERROR_INVALID_VALUE;
  *granularity = Memory::kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* base, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long flags) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemAddressReserve", gpu);
  if (status != CUDA_SUCCESS) return status;
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : gpu->memory.reserve(base, bytes, alignment);
}

CUresult cuMemAddressFree(CUdeviceptr base, std::size_t bytes) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemAddressFree", gpu);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult freed = gpu->memory.free_range(base, bytes);
  return freed != CUDA_SUCCESS ? freed : status;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemCreate", gpu);
  if (status != CUDA_SUCCESS) return status;
  if (flags != 0 || !is_block_of_a_gpu(prop)) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t made = 0;
  const CUresult created = gpu->memory.create(&made, bytes);
  *handle = made;
  return created;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemRelease", gpu);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult released = gpu->memory.release(handle);
  return released != CUDA_SUCCESS ? released : status;
}

CUresult cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemMap", gpu);
  if (status != CUDA_SUCCESS) return status;
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : gpu->memory.map(at, bytes, offset, handle);
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemUnmap", gpu);
  return status != CUDA_SUCCESS ? status : gpu->memory.unmap(at, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  Gpu* gpu = nullptr;
  const CUresult status = Driver::instance().enter_context("cuMemSetAccess", gpu);
  if (status != CUDA_SUCCESS) return status;
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      access->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return gpu->memory.set_access(at, bytes);
}

CUresult cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned int) {
  Gpu* gpu = nullptr;
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter_context("cuMemHostRegister", gpu);
  if (status != CUDA_SUCCESS) return status;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (data == nullptr || bytes == 0 || begin % 4096 != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver.mutex);
  const auto next = driver.registered.upper_bound(begin);
  if (next != driver.registered.end() && next->first < begin + bytes) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (next != driver.registered.begin()) {
    const auto& [first, size] = *std::prev(next);
    if (first + size > begin) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  driver.registered[begin] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* data) {
  Gpu* gpu = nullptr;
  Driver& driver = Driver::instance();
  const CUresult status = driver.enter_context("cuMemHostUnregister", gpu);
  if (gpu == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(driver.mutex);
  const auto erased = driver.registered.erase(reinterpret_cast<std::uintptr_t>(data));
  return erased == 1 ? status : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
}
