#include "device/cuda/cuda_context.hpp"

#include <utility>

#include "base/log.hpp"

namespace sluice {

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, CUdevice device)
    : driver_(std::move(driver)), device_(device) {
  driver_->check(driver_->cuDevicePrimaryCtxRetain(&handle_, device_),
                 "making the primary context of a GPU");
}

CudaContext::~CudaContext() {
  warn_unless_success(*driver_, driver_->cuDevicePrimaryCtxRelease(device_),
                      "releasing the primary context of a GPU");
}

CurrentContext::CurrentContext(const CudaContext& context) : driver_(context.driver()) {
  driver_.check(driver_.cuCtxPushCurrent(context.handle()), "making a context current");
}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  warn_unless_success(driver_, driver_.cuCtxPopCurrent(&popped), "putting a context back");
}

void warn_unless_success(const CudaDriver& driver, CUresult status, const char* doing) noexcept {
  if (status == CUDA_SUCCESS) return;
  try {
    log(LogLevel::kWarning, "cuda: " + std::string(doing) + " failed: " + driver.describe(status));
  } catch (...) {  // a sink that throws, or no memory for the message: nothing is left to do
  }
}

}  // namespace sluice
