#include "device/cuda/cuda_event.hpp"

#include <string>
#include <utility>

#include "device/cuda/poll_pause.hpp"

namespace sluice::device {

CudaEvent::CudaEvent(std::shared_ptr<CudaRuntime> runtime) : runtime_(std::move(runtime)) {
  const CurrentContext current(*runtime_->context);
  runtime_->driver().check(runtime_->driver().cuEventCreate(&handle_, CU_EVENT_DEFAULT),
                           "creating an event");
}

CudaEvent::~CudaEvent() {
  release_in_context(*runtime_->context, "destroying an event",
                     [this](const CudaDriver& driver) { return driver.cuEventDestroy(handle_); });
}

bool CudaEvent::look() const {
  if (reached_ || queue_ == nullptr) return true;
  if (!recorded_) return reached_ = queue_->look_idle();
  const CUresult status = runtime_->driver().cuEventQuery(handle_);
  if (status == CUDA_ERROR_NOT_READY) return false;
  reached_ = true;
  if (status == CUDA_SUCCESS) {
    queue_->complete(queued_);
    return true;
  }
  try {
    runtime_->driver().fail(status, "work of stream '" + queue_->name() + "'");
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    queue_->keep_error(std::current_exception());
  }
  return true;
}

bool CudaEvent::done() const {
  const MutexLock lock(mutex_);
  if (reached_ || queue_ == nullptr) return true;
  const CurrentContext current(*runtime_->context);
  return look();
}

void CudaEvent::synchronize(Deadline deadline, const char* what) const {
  const CurrentContext current(*runtime_->context);
  PollPause pause;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (look()) {
        if (error_) std::rethrow_exception(error_);
        return;
      }
      if (deadline.passed()) {
        throw TimeoutError(std::string(what) + " (event of stream '" + queue_->name() + "')");
      }
    }
    pause.pause();
  }
}

std::int64_t CudaEvent::time_ns() const {
  const MutexLock lock(mutex_);
  SLUICE_CHECK_MSG(queue_ != nullptr, "an event has a time only once it is recorded");
  const CurrentContext current(*runtime_->context);
  SLUICE_CHECK_MSG(look(), "an event has a time only once it is done");
  if (!recorded_) std::rethrow_exception(error_);
  return runtime_->clock.time_ns(*anchor_, handle_);
}

void CudaEvent::record_on(const std::shared_ptr<CudaQueue>& queue) {
  const MutexLock lock(mutex_);
  queue_ = queue;
  queued_ = queue->queued();
  reached_ = false;
  anchor_ = runtime_->clock.anchor();
  const CUresult status = runtime_->driver().cuEventRecord(handle_, queue->handle());
  recorded_ = status == CUDA_SUCCESS;
  if (!recorded_) {
    try {
      runtime_->driver().fail(status, "recording an event on stream '" + queue->name() + "'");
    } catch (...) {
      queue->keep_error(std::current_exception());
    }
  }
  error_ = queue->error();
}

void CudaEvent::hold_back(CudaQueue& queue) const {
  const MutexLock lock(mutex_);
  if (queue_ == nullptr) return;
  if (error_) {
    queue.keep_error(error_);
    return;
  }
  const CUresult status = runtime_->driver().cuStreamWaitEvent(queue.handle(), handle_, 0);
  if (status == CUDA_SUCCESS) return;
  try {
    runtime_->driver().fail(status, "holding stream '" + queue.name() + "' back for an event");
  } catch (...) {
    queue.keep_error(std::current_exception());
  }
}

}  // namespace sluice::device
