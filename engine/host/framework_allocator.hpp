// Device memory for the tensors of a host framework: a dynamic allocator over the engine's device
// and budget, addressed by the framework's own streams. Thread-safe.
//
// A stream is known by its native handle. It is wrapped at its first use, and the wrapper lives as
// long as the allocator, so the framework's streams must too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "allocator/caching/oom_report.hpp"
#include "allocator/caching/planning_allocator.hpp"
#include "allocator/page_pool.hpp"
#include "base/mutex.hpp"
#include "engine/host/host_engine.hpp"

namespace sluice::host {

struct FrameworkAllocatorOptions {
  bool plans = false;  // a PlanningAllocator answers first
  std::size_t recorded_events = 0;
};

// Blocks that are never reused, because a use of theirs is not known. Thread-safe; reading an empty
// set takes no lock.
class WithheldBlocks {
 public:
  void add(const void* block) {
    const MutexLock lock(mutex_);
    blocks_.insert(block);
    is_empty_ = false;
  }
  bool holds(const void* block) {
    if (is_empty_) [[likely]]
      return false;
    const MutexLock lock(mutex_);
    return blocks_.contains(block);
  }

 private:
  Mutex mutex_;
  std::unordered_set<const void*> blocks_ SLUICE_GUARDED_BY(mutex_);
  std::atomic<bool> is_empty_{true};
};

class FrameworkAllocator {
 public:
  // Called when a request finds no room; true: try again. No lock is held.
  using PressureCallback = std::function<bool(std::uint64_t wanted_bytes)>;
  enum class SnapshotFormat { kTorch, kCsv };

  FrameworkAllocator(std::shared_ptr<HostEngine> engine, const FrameworkAllocatorOptions& options);

  // Throws OutOfMemoryReported, and InputError for a site that intern_site() has not returned.
  std::byte* allocate(std::uint64_t bytes, void* native_stream, std::uint32_t site);
  // Whether the address lies in memory of this allocator.
  bool holds(const void* data) const { return caching_.holds(data); }
  // Throw InputError for an address that is no block of this allocator.
  void free(void* data);
  void record_use(void* data, void* native_stream);
  // Never reuses the block: a free of it does nothing. For a use that could not be recorded.
  void withhold(const void* data) { withheld_.add(data); }
  // Returns false if the stream is in use already.
  bool pin_stream(void* native_stream);
  void begin_step();
  void release_cached() { caching_.release_cached(); }
  std::uint32_t intern_site(std::string_view name);
  void set_pressure_callback(PressureCallback callback);

  struct Statistics {
    // Counts and live bytes are those of the program's blocks. The peak of live bytes counts the
    // arena of a plan as a whole.
    allocator::CachingAllocatorStatistics blocks;
    std::uint64_t planned_count = 0;   // allocations that an arena has answered
    std::uint64_t fallback_count = 0;  // others, although there was a plan
    std::uint64_t diverged_steps = 0;
    std::uint64_t arena_bytes = 0;  // of the present plan
  };
  Statistics statistics();
  // Throws IoError.
  void write_snapshot(const std::string& path, SnapshotFormat format);
  // JSON of the last request that found no room; "" if there was none. The search for changes that
  // would have helped takes seconds.
  std::string report(bool searches_fixes);
  HostEngine& engine() { return *engine_; }

 private:
  allocator::StreamId stream_id(void* native, bool movable, bool* is_new);
  allocator::StreamId stream_id(void* native) { return stream_id(native, true, nullptr); }
  void check_site(std::uint32_t site);
  std::byte* try_once(const allocator::AllocationRequest& request);

  const std::shared_ptr<HostEngine> engine_;
  allocator::PagePool pages_;
  std::unique_ptr<record::MemoryRecorder> recorder_;  // null: none
  struct NativeStreams {
    std::vector<std::unique_ptr<device::Stream>> wrappers;
    std::unordered_map<void*, allocator::StreamId> ids;
  };
  NativeStreams streams_ SLUICE_GUARDED_BY(mutex_);  // outlive the allocators
  allocator::CachingAllocator caching_;
  std::unique_ptr<allocator::PlanningAllocator> planning_;  // null: none

  Mutex mutex_;
  std::unordered_map<std::string, std::uint32_t> sites_ SLUICE_GUARDED_BY(mutex_);
  WithheldBlocks withheld_;
  std::atomic<std::uint32_t> last_site_{0};
  std::shared_ptr<const PressureCallback> pressure_ SLUICE_GUARDED_BY(mutex_);
  std::shared_ptr<const allocator::OomReport> last_report_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::host
