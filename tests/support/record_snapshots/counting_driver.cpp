// The driver of the counting device, as far as PyTorch and Sluice call it. counting_cuda.cpp says
// what the device does.
#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <type_traits>

#include "tests/support/record_snapshots/counting_memory.hpp"

namespace {

using namespace counting;

// The end of a function that always succeeds with one result.
template <class T>
CUresult answer(T* result, std::type_identity_t<T> value) {
  *result = value;
  return CUDA_SUCCESS;
}

// Streams whose work does not end for now, and the events that were recorded on them meanwhile.
std::mutex held_mutex;
std::set<CUstream> held_streams;
std::set<CUevent> unfinished_events;
std::atomic<int> unfinished_waits{0};

bool is_unfinished(CUevent event) {
  const std::lock_guard lock(held_mutex);
  return unfinished_events.contains(event);
}

}  // namespace

extern "C" {

// For tests, next to the driver's own functions. held: 1 or 0. When no stream is held, all work is
// done.
void counting_hold(CUstream stream, int held) {
  const std::lock_guard lock(held_mutex);
  if (held == 1) {
    held_streams.insert(stream);
  } else {
    held_streams.erase(stream);
  }
  if (held_streams.empty()) unfinished_events.clear();
}
// Calls that made a stream wait for an event that had not passed.
int counting_unfinished_waits() {
  return unfinished_waits;
}

// Memory. Mappings need no account: addresses and blocks have theirs.
CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                             unsigned long long) {
  *address = memory().reserve(bytes);
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t) {
  return memory().release(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp*, unsigned long long) {
  if (bytes == 0 || bytes % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!memory().charge(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = next_name();
  handles.insert(*handle, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::uint64_t bytes = handles.take(handle);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  memory().discharge(bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granularity = kPage;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "refused by the counting device";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult status, const char** text) {
  *text = status == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

// The device and its only context.
CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  return answer(version, CUDA_VERSION);
}
CUresult cuDeviceGetCount(int* count) {
  return answer(count, 1);
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = 0;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* text, int length, CUdevice) {
  std::snprintf(text, static_cast<std::size_t>(length), "counting device");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:00:00.0");
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  return answer(bytes, memory().capacity());
}
CUresult cuCtxPushCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  return cuCtxGetCurrent(context);
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  static int only;
  *context = reinterpret_cast<CUcontext>(&only);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return cuCtxGetCurrent(context);
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return answer(value, 8);
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return answer(value, 108);
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return answer(value, 1);
    default:  // RDMA, fabric handles, multicast
      return answer(value, 0);
  }
}
CUresult cuMemMap(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                  unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr, std::size_t) {
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = memory().available();
  return answer(total, memory().capacity());
}
CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!memory().charge(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = memory().reserve(bytes);
  allocations.insert(*address, bytes);
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr address) {
  const std::uint64_t bytes = allocations.take(address);
  if (bytes == 0 || !memory().release(address)) return CUDA_ERROR_INVALID_VALUE;
  memory().discharge(bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void*, std::size_t, unsigned) {
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void*) {
  return CUDA_SUCCESS;
}

// Copies.
CUresult cuMemcpyHtoDAsync(CUdeviceptr, const void*, std::size_t, CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr, CUdeviceptr, std::size_t, CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr, std::size_t bytes, CUstream) {
  std::memset(to, 0, bytes);
  return CUDA_SUCCESS;
}

// Streams and events.
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return answer(stream, reinterpret_cast<CUstream>(next_name()));
}
CUresult cuStreamDestroy(CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream, CUevent event, unsigned) {
  if (is_unfinished(event)) ++unfinished_waits;
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  return answer(event, reinterpret_cast<CUevent>(next_name()));
}
CUresult cuEventDestroy(CUevent) {
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  const std::lock_guard lock(held_mutex);
  if (held_streams.contains(stream)) {
    unfinished_events.insert(event);
  } else {
    unfinished_events.erase(event);
  }
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
  return is_unfinished(event) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
// Sluice asks for the first version, which <cuda.h> of CUDA 13 no longer declares.
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  return answer(milliseconds, 0);
}

}  // extern "C"
