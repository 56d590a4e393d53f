// Events of a CUDA device: a driver event, and the state of the stream when it was recorded.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

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
  // True once the point is reached or has failed; then error_ says how it went.
  bool look() const;  // mutex_ held, context current

  const std::shared_ptr<CudaRuntime> runtime_;
  CUevent handle_ = nullptr;
  mutable std::mutex mutex_;          // guards all below
  std::shared_ptr<CudaQueue> queue_;  // null: never recorded
  bool recorded_ = false;  // the driver took the record; else the point is the end of the queue
  std::shared_ptr<const CudaClock::Anchor> anchor_;
  CopiedBytes queued_{};
  mutable bool reached_ = false;
  mutable std::exception_ptr error_;
};

}  // namespace sluice::device
