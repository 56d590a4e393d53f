// One direction of the modelled link between host and device memory. Copies pass one at a time, in
// order of arrival; each holds the link for at least latency + bytes / bandwidth.
#pragma once

#include <cstdint>
#include <deque>

#include "base/mutex.hpp"
#include "device/host/host_device.hpp"

namespace sluice::device {

class HostLink {
 public:
  explicit HostLink(const HostDeviceOptions& options);

  // Copies, and blocks the calling worker until the link was free and the copy's time has passed.
  // Without a model this is memcpy. Throws TimeoutError if the link is not free in time.
  void copy(void* destination, const void* source, std::uint64_t bytes);

 private:
  void acquire();
  void release();

  const double bandwidth_bytes_per_s_;  // 0: unlimited
  const double latency_s_;
  Mutex mutex_;
  CondVar turn_changed_;
  std::uint64_t next_ticket_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::deque<std::uint64_t> waiting_ SLUICE_GUARDED_BY(mutex_);  // tickets in order of arrival
  bool busy_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::device
