// The primary context of one GPU, shared by all objects that live in it.
#pragma once

#include <atomic>
#include <memory>

#include "device/cuda/cuda_driver.hpp"

namespace sluice::device {

class CudaContext {
 public:
  // Retains the primary context. Throws DeviceError.
  CudaContext(std::shared_ptr<const CudaDriver> driver, CUdevice device);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  CUdevice device() const { return device_; }
  CUcontext handle() const { return handle_; }

  // For noexcept paths, which can only log a failure: logs a warning unless the status is success.
  // Every later call repeats a fault of the GPU; each object logs it once.
  void warn_unless_success(CUresult status, const char* doing) const noexcept;

 private:
  const std::shared_ptr<const CudaDriver> driver_;
  const CUdevice device_;
  CUcontext handle_ = nullptr;
  mutable std::atomic<CUresult> reported_fault_ = CUDA_SUCCESS;
};

// Makes the context current on this thread for a scope, on top of the host program's context.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaContext& context_;
};

// Calls `release` with the context current, and logs a failure.
template <typename Release>
void release_in_context(const CudaContext& context, const char* doing, Release release) noexcept {
  const CUresult pushed = context.driver().cuCtxPushCurrent(context.handle());
  context.warn_unless_success(pushed, "making a context current");
  if (pushed != CUDA_SUCCESS) return;
  context.warn_unless_success(release(context.driver()), doing);
  CUcontext popped = nullptr;
  context.warn_unless_success(context.driver().cuCtxPopCurrent(&popped), "putting a context back");
}

}  // namespace sluice::device
