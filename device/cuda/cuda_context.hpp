// The primary context of one GPU, shared by all that lives in it.
#pragma once

#include <memory>

#include "device/cuda/cuda_driver.hpp"

namespace sluice {

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

 private:
  const std::shared_ptr<const CudaDriver> driver_;
  const CUdevice device_;
  CUcontext handle_ = nullptr;
};

// Makes the context current on this thread for a scope, above what the host program has there.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaDriver& driver_;
};

// For noexcept paths, where a failure can only be told: logs a warning unless the status is good.
void warn_unless_success(const CudaDriver& driver, CUresult status, const char* doing) noexcept;

// Calls `release` with the context current; a failure is logged.
template <typename Release>
void release_in_context(const CudaContext& context, const char* doing, Release release) noexcept {
  const CUresult pushed = context.driver().cuCtxPushCurrent(context.handle());
  warn_unless_success(context.driver(), pushed, "making a context current");
  if (pushed != CUDA_SUCCESS) return;
  warn_unless_success(context.driver(), release(context.driver()), doing);
  CUcontext popped = nullptr;
  warn_unless_success(context.driver(), context.driver().cuCtxPopCurrent(&popped),
                      "putting a context back");
}

}  // namespace sluice
