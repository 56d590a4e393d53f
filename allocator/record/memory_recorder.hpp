// Records the last events of an allocator in a ring, with the names of their sites.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/record/memory_trace.hpp"
#include "allocator/record/spin_lock.hpp"

namespace sluice::record {

// Thread-safe. An event takes a lock, a clock and 40 bytes; memory is taken once, at the start.
class MemoryRecorder {
 public:
  // Keeps the last capacity_events events. Precondition: capacity_events > 0.
  explicit MemoryRecorder(std::size_t capacity_events);

  void record(MemoryAction action, std::uint64_t stream, std::uint64_t address, std::uint64_t bytes,
              Category category = Category::kExternal, std::uint32_t name = 0) {
    const std::int64_t time_ns = now_ns();
    const SpinLockHolder lock(mutex_);
    put({action, category, 0, name, stream, address, bytes, time_ns});
  }
  // Both events of a block that is free at once.
  void record_free(std::uint64_t stream, std::uint64_t address, std::uint64_t bytes,
                   Category category, std::uint32_t name) {
    const std::int64_t time_ns = now_ns();
    const SpinLockHolder lock(mutex_);
    put({MemoryAction::kFreeRequested, category, 0, name, stream, address, bytes, time_ns});
    put({MemoryAction::kFreeCompleted, category, 0, name, stream, address, bytes, time_ns});
  }

  // Returns the number of `name`. Equal names have one number; 0 is "".
  std::uint32_t intern(std::string_view name);

  // Oldest first.
  std::vector<MemoryEvent> events() const;
  std::vector<std::string> names() const;

 private:
  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void put(const MemoryEvent& event) SLUICE_REQUIRES(mutex_) {
    ring_[next_] = event;
    if (++next_ == ring_.size()) next_ = 0;
    ++recorded_count_;
  }

  mutable SpinLock mutex_;
  std::vector<MemoryEvent> ring_ SLUICE_GUARDED_BY(mutex_);
  std::size_t next_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t recorded_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> names_ SLUICE_GUARDED_BY(mutex_){""};
  std::unordered_map<std::string, std::uint32_t> numbers_ SLUICE_GUARDED_BY(mutex_){{"", 0}};
};

}  // namespace sluice::record
