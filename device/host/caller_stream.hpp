// The calling thread as a stream of the host device, for host programs without queues: work and
// copies are done before the call returns, and a wait blocks the thread until the event is reached.
// The first failure stays with the stream; later work is dropped.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/host/host_runtime.hpp"

namespace sluice::device {

class CallerStream final : public Stream {
 public:
  CallerStream(std::shared_ptr<HostRuntime> runtime, std::string name)
      : runtime_(std::move(runtime)), name_(std::move(name)) {}

  void launch(std::function<void()> work, std::span<const MemoryAccess> accesses) override;
  void copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize(Deadline deadline) override;

 private:
  template <typename Work>
  void run(Work&& work);
  std::exception_ptr error() const;

  const std::shared_ptr<HostRuntime> runtime_;
  const std::string name_;
  mutable Mutex mutex_;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::device
