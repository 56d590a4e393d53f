// The primary context of one GPU, shared by all that lives in it.
#pragma once

#include <atomic>
#include <memory>

#include "device/cuda/cuda_driver.hpp"

namespace sluice::device {

class CudaContext {
 public:
  // Retains; throws DeviceError.
  CudaContext(std::shared_ptr<const CudaDriver> driver, CUdevice device);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  CUdevice device() const { return device_; }
  CUcontext handle() const { return handle_; }

  // For noexcept paths, where a failure can only be told: logs a warning unless the status is good.
  // A fault of the GPU, which every later call repeats, is told once by each object.
  void warn_unless_success(CUresult status, const char* doing) const noexcept;

 private:
  const std::shared_ptr<const CudaDriver> driver_;
  const CUdevice device_;
  CUcontext handle_ = nullptr;
  mutable std::atomic<CUresult> told_fault_ = CUDA_SUCCESS;
};

// Makes the context current on this thread for a scope, above what the host program has there.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaContext& context_;
};

// Calls `release` with the context current; a failure is logged.
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
