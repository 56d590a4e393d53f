#include "device/host/caller_stream.hpp"

#include <utility>

#include "device/host/host_event.hpp"

namespace sluice::device {

std::exception_ptr CallerStream::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

template <typename Work>
void CallerStream::run(Work&& work) {
  if (error()) return;
  try {
    work();
  } catch (...) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void CallerStream::launch(std::function<void()> work, std::span<const MemoryAccess>) {
  SLUICE_CHECK_MSG(work != nullptr, "launched work is not empty");
  run(work);
}

void CallerStream::copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) {
  if (bytes == 0) return;
  SLUICE_CHECK_MSG(destination != nullptr && source != nullptr, "a copy has two ends");
  run([&] { runtime_->copy(destination, source, bytes, kind); });
}

void CallerStream::record(Event& event) {
  auto* const host_event = dynamic_cast<HostEvent*>(&event);
  SLUICE_CHECK_MSG(host_event != nullptr, "an event is recorded by streams of its own device");
  auto point = std::make_shared<HostEventPoint>(name_, VectorClock{});
  point->reach(error());
  host_event->set_point(std::move(point));
}

void CallerStream::wait(const Event& event) {
  run([&] {
    event.synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds),
                      "an event that the calling thread waits for");
  });
}

void CallerStream::synchronize(Deadline) {
  if (const std::exception_ptr found = error()) std::rethrow_exception(found);
}

}  // namespace sluice::device
