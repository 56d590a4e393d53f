// A stream of the host device: a bounded queue and the worker thread that empties it in order.
//
// The first failure stays with the stream: what follows is dropped, except that events still reach
// their points and carry the failure on, to whoever waits and to streams that wait.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/host/host_event.hpp"
#include "device/host/host_runtime.hpp"

namespace sluice::device {

class HostStream final : public Stream {
 public:
  HostStream(std::shared_ptr<HostRuntime> runtime, const std::string& name);
  ~HostStream() override;

  void launch(std::function<void()> work, std::span<const MemoryAccess> accesses) override;
  void copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize(Deadline deadline) override;

 private:
  struct Launch {
    std::function<void()> work;
  };
  struct Copy {
    void* destination;
    const void* source;
    std::uint64_t bytes;
    CopyKind kind;
  };
  struct Record {
    std::shared_ptr<HostEventPoint> point;
  };
  struct Wait {
    std::shared_ptr<HostEventPoint> point;
  };
  // In the place of an entry that raced.
  struct Fail {
    std::exception_ptr error;
  };
  using Entry = std::variant<Launch, Copy, Record, Wait, Fail>;

  void push(Entry entry);
  // What is wrong with the accesses of an entry about to be queued, or null.
  std::exception_ptr find_race(std::span<const MemoryAccess> accesses);
  void run_worker();
  // earlier: the failure that the stream holds, or null.
  void execute(Entry& entry, const std::exception_ptr& earlier) noexcept SLUICE_EXCLUDES(mutex_);
  void run_copy(const Copy& entry);

  const std::shared_ptr<HostRuntime> runtime_;
  const std::string name_;
  RaceDetector::StreamId race_id_ = 0;

  Mutex mutex_;
  CondVar entry_pushed_;
  CondVar entry_finished_;
  std::deque<Entry> queue_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t pushed_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t finished_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);  // written by the worker only

  std::jthread worker_;  // last: it starts when all else is there
};

}  // namespace sluice::device
