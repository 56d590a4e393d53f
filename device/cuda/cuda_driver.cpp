#include "device/cuda/cuda_driver.hpp"

#include "base/dynamic_library.hpp"
#include "base/error.hpp"

namespace sluice::device {
namespace {

void fill(DynamicLibrary& library, CudaDriver& driver) {
// Twice, so that the macros of <cuda.h> give the versioned name its text.
#define SLUICE_CUDA_TEXT(name) #name
#define SLUICE_CUDA_FIND(name) library.find(SLUICE_CUDA_TEXT(name), driver.name);
  SLUICE_CUDA_DRIVER_FUNCTIONS(SLUICE_CUDA_FIND)
#undef SLUICE_CUDA_FIND
#undef SLUICE_CUDA_TEXT
  library.find("cuEventElapsedTime", driver.event_elapsed_time);
}

}  // namespace

std::string CudaDriver::describe(CUresult status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  // A status that this driver does not know keeps its number.
  if (cuGetErrorName(status, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUDA status " + std::to_string(static_cast<int>(status));
  }
  if (cuGetErrorString(status, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

void CudaDriver::fail(CUresult status, const std::string& doing) const {
  throw DeviceError("cuda: " + doing + " failed: " + describe(status));
}

CudaDriverSearch find_cuda_driver() {
  DynamicLibrary library = DynamicLibrary::open({"libcuda.so.1"});
  if (!library.is_open()) {
    return {nullptr, "no NVIDIA driver: " + library.error()};
  }
  auto driver = std::make_shared<CudaDriver>();
  fill(library, *driver);
  if (!library.missing().empty()) {
    return {nullptr, "the NVIDIA driver is too old: it has no " + library.missing()};
  }
  if (const CUresult status = driver->cuInit(0); status != CUDA_SUCCESS) {
    return {nullptr, "the NVIDIA driver does not start: " + driver->describe(status)};
  }
  return {std::move(driver), {}};
}

}  // namespace sluice::device
