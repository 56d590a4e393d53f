// Events of a CUDA device: a driver event, and the state of the stream when it was recorded.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "base/mutex.hpp"
#include "device/cuda/cuda_queue.hpp"

namespace sluice::device {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<CudaRuntime> runtime);  // throws DeviceError
  ~CudaEvent() override;

  bool done() const override;
  void synchronize(Deadline deadline, const char* what) const override;
  std::int64_t time_ns() const override;

  // Streams call these two, with the context current. `queue` keeps a failure of the driver.
  void record_on(const std::shared_ptr<CudaQueue>& queue);
  void hold_back(CudaQueue& queue) const;

 private:
  // Returns true once the point is reached or has failed; then error_ says how it went.
  // The context is current.
  bool look() const SLUICE_REQUIRES(mutex_);

  const std::shared_ptr<CudaRuntime> runtime_;
  CUevent handle_ = nullptr;
  mutable Mutex mutex_;
  std::shared_ptr<CudaQueue> queue_ SLUICE_GUARDED_BY(mutex_);  // null: never recorded
  bool recorded_ SLUICE_GUARDED_BY(mutex_) =
      false;  // the driver took the record; else the point is the end of the queue
  std::shared_ptr<const CudaClock::Anchor> anchor_ SLUICE_GUARDED_BY(mutex_);
  CopiedBytes queued_ SLUICE_GUARDED_BY(mutex_){};
  mutable bool reached_ SLUICE_GUARDED_BY(mutex_) = false;
  mutable std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::device
