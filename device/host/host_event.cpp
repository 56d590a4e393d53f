#include "device/host/host_event.hpp"

#include <utility>

namespace sluice::device {

void HostEventPoint::reach(std::exception_ptr error) noexcept {
  {
    const MutexLock lock(mutex_);
    time_ns_ = host_now_ns();
    error_ = std::move(error);
    reached_ = true;
  }
  reached_changed_.notify_all();
}

bool HostEventPoint::reached() const {
  const MutexLock lock(mutex_);
  return reached_;
}

std::exception_ptr HostEventPoint::wait(Deadline deadline, const char* what) const {
  MutexLock lock(mutex_);
  if (!reached_changed_.wait_until(lock, deadline,
                                   [this]() SLUICE_REQUIRES(mutex_) { return reached_; })) {
    throw TimeoutError(std::string(what).append(" (event of stream '" + stream_name_ + "')"));
  }
  return error_;
}

std::int64_t HostEventPoint::time_ns() const {
  const MutexLock lock(mutex_);
  SLUICE_CHECK_MSG(reached_, "an event has a time only once it is done");
  return time_ns_;
}

bool HostEvent::done() const {
  const auto at = point();
  if (at == nullptr) return true;
  if (!at->reached()) return false;
  if (runtime_->races) runtime_->races->host_learned(at->clock());
  return true;
}

void HostEvent::synchronize(Deadline deadline, const char* what) const {
  const auto at = point();
  if (at == nullptr) return;
  const std::exception_ptr error = at->wait(deadline, what);
  if (runtime_->races) runtime_->races->host_learned(at->clock());
  if (error) std::rethrow_exception(error);
}

std::int64_t HostEvent::time_ns() const {
  const auto at = point();
  SLUICE_CHECK_MSG(at != nullptr, "an event has a time only once it is recorded");
  return at->time_ns();
}

void HostEvent::set_point(std::shared_ptr<HostEventPoint> point) {
  const MutexLock lock(mutex_);
  point_ = std::move(point);
}

std::shared_ptr<HostEventPoint> HostEvent::point() const {
  const MutexLock lock(mutex_);
  return point_;
}

}  // namespace sluice::device
