#include "device/cuda/cuda_queue.hpp"

#include <utility>

namespace sluice::device {

CudaQueue::CudaQueue(std::shared_ptr<CudaRuntime> runtime, std::string name)
    : runtime_(std::move(runtime)), name_(std::move(name)), is_borrowed_(false) {
  const CurrentContext current(*runtime_->context);
  // Non-blocking: not ordered with the default stream, which the host program may use.
  runtime_->driver().check(runtime_->driver().cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING),
                           "creating a stream");
}

CudaQueue::CudaQueue(std::shared_ptr<CudaRuntime> runtime, std::string name, CUstream borrowed)
    : runtime_(std::move(runtime)), name_(std::move(name)), handle_(borrowed), is_borrowed_(true) {}

CudaQueue::~CudaQueue() {
  if (is_borrowed_) return;
  release_in_context(*runtime_->context, "destroying a stream",
                     [this](const CudaDriver& driver) { return driver.cuStreamDestroy(handle_); });
}

void CudaQueue::keep_error(std::exception_ptr error) noexcept {
  const MutexLock lock(mutex_);
  if (!error_) error_ = std::move(error);
}

std::exception_ptr CudaQueue::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

void CudaQueue::add_queued(CopyKind kind, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  queued_[static_cast<std::size_t>(kind)] += bytes;
}

CopiedBytes CudaQueue::queued() const {
  const MutexLock lock(mutex_);
  return queued_;
}

void CudaQueue::complete(const CopiedBytes& queued) noexcept {
  const MutexLock lock(mutex_);
  for (std::size_t kind = 0; kind < kCopyKindCount; ++kind) {
    if (queued[kind] <= completed_[kind]) continue;  // a later point was seen before this one
    // Relaxed: a total for reports; a reader after a synchronize is ordered by that.
    runtime_->copied_bytes[kind].fetch_add(queued[kind] - completed_[kind],
                                           std::memory_order_relaxed);
    completed_[kind] = queued[kind];
  }
}

bool CudaQueue::look_idle() noexcept {
  const CopiedBytes before = queued();
  const CUresult status = runtime_->driver().cuStreamQuery(handle_);
  if (status == CUDA_ERROR_NOT_READY) return false;
  if (status == CUDA_SUCCESS) {
    complete(before);
    return true;
  }
  try {
    runtime_->driver().fail(status, "work of stream '" + name_ + "'");
  } catch (...) {
    keep_error(std::current_exception());
  }
  return true;
}

}  // namespace sluice::device
