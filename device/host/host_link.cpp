#include "device/host/host_link.hpp"

#include <chrono>
#include <cstring>
#include <thread>

namespace sluice::device {

HostLink::HostLink(const HostDeviceOptions& options)
    : bandwidth_bytes_per_s_(options.link_bandwidth_bytes_per_s),
      latency_s_(options.link_latency_s) {}

// By ticket: a mutex alone would let a stream of back-to-back copies starve the others.
void HostLink::acquire() {
  MutexLock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  const Deadline deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
  if (!turn_changed_.wait_until(lock, deadline, [&]() SLUICE_REQUIRES(mutex_) {
        return !busy_ && waiting_.front() == ticket;
      })) {
    std::erase(waiting_, ticket);
    lock.unlock();
    turn_changed_.notify_all();
    throw TimeoutError("the modelled link between host and device memory");
  }
  waiting_.pop_front();
  busy_ = true;
}

void HostLink::release() {
  {
    const MutexLock lock(mutex_);
    busy_ = false;
  }
  turn_changed_.notify_all();
}

void HostLink::copy(void* destination, const void* source, std::uint64_t bytes) {
  if (bandwidth_bytes_per_s_ <= 0.0 && latency_s_ <= 0.0) {
    std::memcpy(destination, source, bytes);
    return;
  }
  acquire();
  const auto begin = std::chrono::steady_clock::now();
  double seconds = latency_s_;
  if (bandwidth_bytes_per_s_ > 0.0) seconds += static_cast<double>(bytes) / bandwidth_bytes_per_s_;
  std::memcpy(destination, source, bytes);
  std::this_thread::sleep_until(begin +
                                std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
  release();
}

}  // namespace sluice::device
