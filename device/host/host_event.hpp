// Events of the host device: a handle on the point that was recorded last.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

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
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_changed_;
  bool reached_ = false;      // guarded by mutex_
  std::int64_t time_ns_ = 0;  // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
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
  mutable std::mutex mutex_;
  std::shared_ptr<HostEventPoint> point_;  // guarded by mutex_
};

}  // namespace sluice::device
