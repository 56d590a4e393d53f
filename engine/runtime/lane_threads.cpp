#include "engine/runtime/lane_threads.hpp"

#include <string>

#include "base/thread.hpp"

namespace sluice::runtime {

// A constructor that throws runs no destructor: the threads that have started must be stopped
// here, else joining them would wait for ever.
LaneThreads::LaneThreads() {
  try {
    for (std::size_t i = 0; i < schedule::kLaneCount; ++i) {
      const auto lane = static_cast<schedule::Lane>(i);
      threads_.push_back(start_thread("lane " + std::string(schedule::lane_name(lane)),
                                      [this, lane] { serve(lane); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

LaneThreads::~LaneThreads() {
  stop();
}

void LaneThreads::stop() noexcept {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  threads_.clear();  // joins
}

void LaneThreads::run(const Body& body) {
  MutexLock lock(mutex_);
  body_ = &body;
  running_count_ = schedule::kLaneCount;
  ++generation_;
  changed_.notify_all();
  changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return running_count_ == 0; });
  body_ = nullptr;
}

void LaneThreads::serve(schedule::Lane lane) {
  std::uint64_t seen = 0;
  while (true) {
    const Body* body = nullptr;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock,
                    [&]() SLUICE_REQUIRES(mutex_) { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      body = body_;
    }
    (*body)(lane);
    {
      const MutexLock lock(mutex_);
      --running_count_;
    }
    changed_.notify_all();
  }
}

}  // namespace sluice::runtime
