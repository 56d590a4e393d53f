// The functions of libcuda.so.1 that Sluice calls, looked up when a device is made.
//
// <cuda.h> defines the types. Its macros turn each name into the version of those types
// (cuMemAlloc is cuMemAlloc_v2), here and in the table.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

namespace sluice::device {

#define SLUICE_CUDA_DRIVER_FUNCTIONS(X) \
  X(cuInit)                             \
  X(cuDriverGetVersion)                 \
  X(cuGetErrorName)                     \
  X(cuGetErrorString)                   \
  X(cuDeviceGetCount)                   \
  X(cuDeviceGet)                        \
  X(cuDeviceGetName)                    \
  X(cuDeviceTotalMem)                   \
  X(cuDeviceGetAttribute)               \
  X(cuDeviceGetPCIBusId)                \
  X(cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxRelease)          \
  X(cuCtxPushCurrent)                   \
  X(cuCtxPopCurrent)                    \
  X(cuStreamCreate)                     \
  X(cuStreamDestroy)                    \
  X(cuStreamQuery)                      \
  X(cuStreamWaitEvent)                  \
  X(cuEventCreate)                      \
  X(cuEventDestroy)                     \
  X(cuEventRecord)                      \
  X(cuEventQuery)                       \
  X(cuMemGetInfo)                       \
  X(cuMemAlloc)                         \
  X(cuMemFree)                          \
  X(cuMemHostRegister)                  \
  X(cuMemHostUnregister)                \
  X(cuMemcpyHtoDAsync)                  \
  X(cuMemcpyDtoHAsync)                  \
  X(cuMemcpyDtoDAsync)                  \
  X(cuMemGetAllocationGranularity)      \
  X(cuMemAddressReserve)                \
  X(cuMemAddressFree)                   \
  X(cuMemCreate)                        \
  X(cuMemRelease)                       \
  X(cuMemMap)                           \
  X(cuMemUnmap)                         \
  X(cuMemSetAccess)

struct CudaDriver {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define SLUICE_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  SLUICE_CUDA_DRIVER_FUNCTIONS(SLUICE_CUDA_MEMBER)
#undef SLUICE_CUDA_MEMBER
  // The first version. Later ones do not differ in the parts used here, and older
  // drivers lack them.
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent start, CUevent end) = nullptr;

  // Throws DeviceError("<doing> failed: <name> (<text>)") unless the status is CUDA_SUCCESS.
  void check(CUresult status, const char* doing) const {
    if (status != CUDA_SUCCESS) [[unlikely]]
      fail(status, doing);
  }
  [[noreturn]] void fail(CUresult status, const std::string& doing) const;
  std::string describe(CUresult status) const;  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device)"
};

struct CudaDriverSearch {
  std::shared_ptr<const CudaDriver> driver;  // initialised; null: there is none
  std::string missing;                       // then the reason, one sentence without a full stop
};
CudaDriverSearch find_cuda_driver();

}  // namespace sluice::device
