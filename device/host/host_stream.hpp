// A stream of the host device: a bounded queue and a worker thread that runs its entries in order.
//
// Invariants:
//   1. Entries run in the order in which they were pushed, one at a time.
//   2. The first failure becomes the stream's error and stays. Later work and copies are dropped.
//   3. A recorded point is reached even after a failure, and carries the error. Waiting threads and
//      waiting streams thus get the error instead of a hang.
//   4. The captures of an entry are destroyed before the entry counts as finished.
//   5. With race detection, an entry that races is replaced by a Fail entry: it never runs.
//   6. Every wait has a deadline, except the idle worker's wait for an entry. The destructor runs
//      the remaining entries and joins the worker.
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
  // Replaces an entry that races.
  struct Fail {
    std::exception_ptr error;
  };
  using Entry = std::variant<Launch, Copy, Record, Wait, Fail>;

  void push(Entry entry);
  // The race that an entry with these accesses would cause, or null.
  std::exception_ptr find_race(std::span<const MemoryAccess> accesses);
  void run_worker();
  // earlier: the failure that the stream holds, or null.
  void execute(Entry& entry, const std::exception_ptr& earlier) noexcept SLUICE_EXCLUDES(mutex_);

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
