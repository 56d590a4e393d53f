#include "device/cuda/cuda_driver.hpp"

#include <dlfcn.h>

#include <cstring>

#include "base/error.hpp"

namespace sluice::device {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// dlsym gives an object pointer; POSIX promises that it holds a function's address.
template <typename Function>
bool find_symbol(void* library, const char* name, Function& function) {
  void* const symbol = ::dlsym(library, name);
  static_assert(sizeof(function) == sizeof(symbol));
  std::memcpy(&function, &symbol, sizeof(symbol));
  return symbol != nullptr;
}

// The first function that the library lacks, or null.
const char* fill(void* library, CudaDriver& driver) {
// Twice, so that the macros of <cuda.h> give the versioned name its text.
#define SLUICE_CUDA_TEXT(name) #name
#define SLUICE_CUDA_FIND(name) \
  if (!find_symbol(library, SLUICE_CUDA_TEXT(name), driver.name)) return SLUICE_CUDA_TEXT(name);
  SLUICE_CUDA_DRIVER_FUNCTIONS(SLUICE_CUDA_FIND)
#undef SLUICE_CUDA_FIND
#undef SLUICE_CUDA_TEXT
  constexpr const char* kElapsed = "cuEventElapsedTime";
  return find_symbol(library, kElapsed, driver.event_elapsed_time) ? nullptr : kElapsed;
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
  // Never closed: the driver has threads of its own, which run on.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return {nullptr, "there is no NVIDIA driver here: " +
                         std::string(reason != nullptr ? reason : "libcuda.so.1 is missing")};
  }
  auto driver = std::make_shared<CudaDriver>();
  if (const char* const lacking = fill(library, *driver)) {
    return {nullptr, "the NVIDIA driver is too old: it has no " + std::string(lacking)};
  }
  if (const CUresult status = driver->cuInit(0); status != CUDA_SUCCESS) {
    return {nullptr, "the NVIDIA driver does not start: " + driver->describe(status)};
  }
  return {std::move(driver), {}};
}

}  // namespace sluice::device
