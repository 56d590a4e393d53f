// One thread for each lane of a schedule, kept from one pass to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::runtime {

class LaneThreads {
 public:
  using Body = std::function<void(schedule::Lane)>;

  // Starts every thread. Throws ThreadError once the threads that did start have ended.
  LaneThreads();
  ~LaneThreads();
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // Calls body(lane) on the thread of each lane, and returns when every call has returned. The
  // body must not throw, and must end by itself: this wait has no deadline of its own. Not
  // thread-safe.
  void run(const Body& body) SLUICE_EXCLUDES(mutex_);

 private:
  void serve(schedule::Lane lane) SLUICE_EXCLUDES(mutex_);
  void stop() noexcept SLUICE_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  const Body* body_ SLUICE_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t generation_ SLUICE_GUARDED_BY(mutex_) = 0;  // counts the calls of run()
  std::size_t running_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sluice::runtime
