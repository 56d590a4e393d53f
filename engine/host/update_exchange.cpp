#include "engine/host/update_exchange.hpp"

#include <utility>

#include "base/error.hpp"

namespace sluice::host {

void UpdateExchange::offer(std::vector<CallerPart> parts) {
  if (parts.empty()) return;
  MutexLock lock(mutex_);
  parts_ = std::move(parts);
  taken_ = 0;
  is_offered_ = true;
  changed_.notify_all();
  const bool done = changed_.wait_until(
      lock, Deadline::after_seconds(deadline_seconds_),
      [this]() SLUICE_REQUIRES(mutex_) { return !is_offered_ || is_abandoned_; });
  is_offered_ = false;
  if (!done) throw TimeoutError("the program's own update of a unit");
  if (is_abandoned_) throw Error("the program abandoned its update");
}

void UpdateExchange::finish(std::exception_ptr error) noexcept {
  const MutexLock lock(mutex_);
  error_ = std::move(error);
  is_finished_ = true;
  changed_.notify_all();
}

std::optional<CallerPart> UpdateExchange::next() {
  MutexLock lock(mutex_);
  if (is_offered_ && taken_ == parts_.size()) {
    is_offered_ = false;
    changed_.notify_all();
  }
  if (!changed_.wait_until(lock, Deadline::after_seconds(deadline_seconds_),
                           [this]()
                               SLUICE_REQUIRES(mutex_) { return is_offered_ || is_finished_; })) {
    throw TimeoutError("the next unit of an update");
  }
  if (is_finished_ && error_) std::rethrow_exception(error_);
  if (is_finished_) return std::nullopt;
  return parts_[taken_++];
}

void UpdateExchange::abandon() noexcept {
  const MutexLock lock(mutex_);
  is_abandoned_ = true;
  changed_.notify_all();
}

}  // namespace sluice::host
