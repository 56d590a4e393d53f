// A CUDA runtime that only counts; counting_driver.cpp is its driver. Memory is given out as
// addresses and accounted; launches and copies succeed and do nothing. PyTorch's CUDA build runs
// over it on a machine without a GPU, so that its own allocator, autograd and optimizers can be
// recorded. There is no arithmetic.
//
// - Memory: counting_memory.hpp.
//   COUNTING_BYTES is the memory of the device (80 GiB); beyond it, calls fail as on a full device.
//   The lowest range of addresses that fits is taken, by 2 MiB, or the highest with
//   COUNTING_PLACE=descending. There is one device, of compute capability 8.0.
// - Reads from the device give zeros. Copies between host buffers copy.
// - Streams and events are names; an event has passed as soon as it is recorded, unless a test
//   holds the work of its stream back (counting_hold, which the driver's library has).
// - build_libraries.py makes every other function that PyTorch needs to find: it succeeds where it
//   has nothing to do (SUCCEED there), or fails with "not supported".
//
// It serves CUDA 12 and 13. Thread-safe. Built by build_libraries.py into libcudart.so;
// libcuda.so.1 borrows the cu... functions.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>

#include "tests/support/record_snapshots/counting_memory.hpp"

namespace {

using namespace counting;

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t error) {
  return last_error = error;
}

// The attributes of the device; all others are 0.
const std::map<cudaDeviceAttr, int> kAttributes{
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 166912},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 167936},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMultiProcessorCount, 108},
    {cudaDevAttrComputeCapabilityMajor, 8},
    {cudaDevAttrUnifiedAddressing, 1}};

// The end of a function that always succeeds with one result.
template <class T>
cudaError_t answer(T* result, std::type_identity_t<T> value) {
  *result = value;
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Memory.
cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (!memory().charge(bytes)) return failed(cudaErrorMemoryAllocation);
  const std::uint64_t at = memory().reserve(bytes);
  if (at == 0) {
    memory().discharge(bytes);
    return failed(cudaErrorMemoryAllocation);
  }
  allocations.insert(at, bytes);
  *address = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::uint64_t bytes = allocations.take(at);
  if (bytes == 0) return failed(cudaErrorInvalidValue);
  memory().release(at);
  memory().discharge(bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = memory().available();
  *total = memory().capacity();
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  *address = std::calloc(1, bytes);
  return *address != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return cudaHostAlloc(address, bytes, 0);
}
cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return answer(device, host);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const bool on_device = memory().holds(address);
  *attributes = {};
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = on_device ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}

// Copies.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  copy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  copy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
         width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (!memory().holds(to)) std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}

// The device.
cudaError_t cudaGetDeviceCount(int* count) {
  return answer(count, 1);
}
cudaError_t cudaGetDevice(int* device) {
  return answer(device, 0);
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return answer(can, 0);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int) {
  const auto found = kAttributes.find(attr);
  return answer(value, found != kAttributes.end() ? found->second : 0);
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:00:00.0");
  return cudaSuccess;
}
#if CUDART_VERSION < 13000
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "counting device");
  properties->totalGlobalMem = memory().capacity();
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 166912;
  properties->sharedMemPerMultiprocessor = 167936;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->multiProcessorCount = 108;
  properties->major = 8;
  properties->l2CacheSize = 40 << 20;
  properties->unifiedAddressing = 1;
  properties->concurrentKernels = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return answer(version, CUDART_VERSION);
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return answer(version, CUDART_VERSION);
}
#if CUDART_VERSION >= 12050
// The entry of a function of the driver, in any version: they do not differ in the counted parts.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  *function = driver == nullptr ? nullptr : dlsym(driver, symbol);
  if (*function == nullptr && driver != nullptr) {
    *function = dlsym(driver, (std::string(symbol) + "_v2").c_str());
  }
  if (result != nullptr) {
    *result =
        *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
#endif
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "refused by the counting device";
}

// Streams and events.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return answer(stream, reinterpret_cast<cudaStream_t>(next_name()));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  return answer(priority, 0);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return answer(status, cudaStreamCaptureStatusNone);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  return answer(status, cudaStreamCaptureStatusNone);
}
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status,
                                        unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                        std::size_t*) {
  return answer(status, cudaStreamCaptureStatusNone);
}
#endif
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return answer(event, reinterpret_cast<cudaEvent_t>(next_name()));
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return answer(milliseconds, 0);
}

// Kernels. The functions that compiled code calls at start-up and around a launch have no public
// declaration.
void** __cudaRegisterFatBinary(void*) {
  static void* binary = nullptr;
  return &binary;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) {
  return 1;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = *block = dim3{1, 1, 1};
  *shared = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
// A kernel has the address of its stub for a name.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaSuccess;
}
#endif
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 80;
  attributes->maxDynamicSharedSizeBytes = 166912;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  return answer(blocks, 2);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          std::size_t) {
  return answer(blocks, 2);
}

}  // extern "C"
