#include "device/cuda/cuda_context.hpp"

#include <utility>

#include "base/log.hpp"

namespace sluice::device {
namespace {

// Whether the context does no more work after this status and returns it from every call (cuda.h).
bool is_fault(CUresult status) {
  switch (status) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
#if CUDA_VERSION >= 13000
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_EXTERNAL_DEVICE:
#endif
      return true;
    default:
      return false;
  }
}

}  // namespace

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, CUdevice device)
    : driver_(std::move(driver)), device_(device) {
  driver_->check(driver_->cuDevicePrimaryCtxRetain(&handle_, device_),
                 "making the primary context of a GPU");
}

CudaContext::~CudaContext() {
  warn_unless_success(driver_->cuDevicePrimaryCtxRelease(device_),
                      "releasing the primary context of a GPU");
}

void CudaContext::warn_unless_success(CUresult status, const char* doing) const noexcept {
  if (status == CUDA_SUCCESS) return;
  const bool fault = is_fault(status);
  if (fault && reported_fault_.exchange(status, std::memory_order_relaxed) == status) return;
  try {
    log(LogLevel::kWarning, "cuda: " + std::string(doing) +
                                " failed: " + driver_->describe(status) +
                                (fault ? "; further reports of it are suppressed" : ""));
  } catch (...) {  // the sink threw, or there is no memory for the message: nothing is left to do
  }
}

CurrentContext::CurrentContext(const CudaContext& context) : context_(context) {
  const CudaDriver& driver = context_.driver();
  driver.check(driver.cuCtxPushCurrent(context_.handle()), "making a context current");
}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  context_.warn_unless_success(context_.driver().cuCtxPopCurrent(&popped),
                               "putting a context back");
}

}  // namespace sluice::device
