// The simulated driver's functions for memory.
#include <unistd.h>

#include <iterator>

#include "tests/support/cuda_driver/simulated_driver.hpp"

using sluice::simulated::call;
using sluice::simulated::call_locked;
using sluice::simulated::Driver;
using sluice::simulated::Gpu;
using sluice::simulated::Memory;
using sluice::simulated::release;

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
  return call("cuMemGetInfo", [&](Driver&, Gpu& gpu) {
    *free = gpu.memory.free_bytes();
    *total = gpu.memory.capacity_bytes();
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* data, std::size_t bytes) {
  return call("cuMemAlloc", [&](Driver&, Gpu& gpu) { return gpu.memory.allocate(data, bytes); });
}

CUresult cuMemFree_v2(CUdeviceptr data) {
  return release("cuMemFree", [&](Driver& driver, Gpu& gpu) {
    drain_all(driver);  // as the driver does
    return gpu.memory.free(data);
  });
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  return call("cuMemGetAllocationGranularity", [&](Driver&, Gpu&) {
    if (!is_block_of_a_gpu(prop)) return CUDA_ERROR_INVALID_VALUE;
    *granularity = Memory::kGranularity;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* base, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long flags) {
  return call("cuMemAddressReserve", [&](Driver&, Gpu& gpu) {
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : gpu.memory.reserve(base, bytes, alignment);
  });
}

CUresult cuMemAddressFree(CUdeviceptr base, std::size_t bytes) {
  return release("cuMemAddressFree",
                 [&](Driver&, Gpu& gpu) { return gpu.memory.free_range(base, bytes); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  return call("cuMemCreate", [&](Driver&, Gpu& gpu) {
    if (flags != 0 || !is_block_of_a_gpu(prop)) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t made = 0;
    const CUresult created = gpu.memory.create(&made, bytes);
    *handle = made;
    return created;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return release("cuMemRelease", [&](Driver&, Gpu& gpu) { return gpu.memory.release(handle); });
}

CUresult cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return call("cuMemMap", [&](Driver&, Gpu& gpu) {
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : gpu.memory.map(at, bytes, offset, handle);
  });
}

CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  return call("cuMemUnmap", [&](Driver&, Gpu& gpu) { return gpu.memory.unmap(at, bytes); });
}

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  return call("cuMemSetAccess", [&](Driver&, Gpu& gpu) {
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        access->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return gpu.memory.set_access(at, bytes);
  });
}

CUresult cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned int) {
  return call("cuMemHostRegister", [&](Driver& driver, Gpu&) {
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
  });
}

CUresult cuMemHostUnregister(void* data) {
  return release("cuMemHostUnregister", [&](Driver& driver, Gpu&) {
    const std::lock_guard lock(driver.mutex);
    const auto erased = driver.registered.erase(reinterpret_cast<std::uintptr_t>(data));
    return erased == 1 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}
}
