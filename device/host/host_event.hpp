// Events of the host device: a handle on the point that was recorded last.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/host/host_runtime.hpp"

namespace sluice::device {

// One recorded point in a stream. The event, the stream's queue and all waiters share it.
class HostEventPoint {
 public:
  HostEventPoint(std::string stream_name, VectorClock clock)
      : stream_name_(std::move(stream_name)), clock_(std::move(clock)) {}

  // Called when the stream's worker gets here. error: the stream's error at that time, or null.
  void reach(std::exception_ptr error) noexcept;
  bool reached() const;
  // Returns the error carried, or null; throws TimeoutError naming `what`.
  std::exception_ptr wait(Deadline deadline, const char* what) const;
  std::int64_t time_ns() const;

  const std::string& stream_name() const { return stream_name_; }
  const VectorClock& clock() const { return clock_; }  // empty unless races are detected

 private:
  const std::string stream_name_;
  const VectorClock clock_;
  mutable Mutex mutex_;
  mutable CondVar reached_changed_;
  bool reached_ SLUICE_GUARDED_BY(mutex_) = false;
  std::int64_t time_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

class HostEvent final : public Event {
 public:
  explicit HostEvent(std::shared_ptr<HostRuntime> runtime) : runtime_(std::move(runtime)) {}

  bool done() const override;
  void synchronize(Deadline deadline, const char* what) const override;
  std::int64_t time_ns() const override;

  void set_point(std::shared_ptr<HostEventPoint> point);
  std::shared_ptr<HostEventPoint> point() const;  // null: never recorded

 private:
  const std::shared_ptr<HostRuntime> runtime_;
  mutable Mutex mutex_;
  std::shared_ptr<HostEventPoint> point_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::device
