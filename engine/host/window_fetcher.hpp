// The windows of a pager in use: which units are held, which are here, and the thread that fetches
// the others. UnitPager says what these words promise.
//
//   away ── acquire or look-ahead ──> queued ──> fetching ──> here ── room is needed ──> away
//
// Fetches run in the order of the queue. A unit that is acquired goes to its front. Thread-safe,
// but for one program at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "engine/host/unit_homes.hpp"
#include "engine/host/unit_windows.hpp"
#include "engine/host/use_record.hpp"

namespace sluice::host {

class WindowFetcher {
 public:
  // All arguments must outlive this object.
  WindowFetcher(HostEngine& engine, const std::vector<PagedUnit>& units, const PagerPlan& plan,
                UnitHomes& homes);
  ~WindowFetcher();
  WindowFetcher(const WindowFetcher&) = delete;
  WindowFetcher& operator=(const WindowFetcher&) = delete;

  std::byte* address(std::uint32_t unit) const { return windows_.address(unit); }
  void begin_pass();
  void acquire(std::uint32_t unit, void* native_stream);
  void release(std::uint32_t unit, void* native_stream);
  // Drops what is queued and waits for a fetch under way: after it, homes may be written.
  void quiesce();

  struct Counters {
    std::uint64_t uses = 0, demand_fetches = 0, prefetches = 0;
    std::uint64_t fetched_bytes = 0, mapped_pages = 0;
    std::uint64_t plans = 0, deviations = 0;
    double wait_seconds = 0;  // in acquire()
  };
  Counters counters() const;

 private:
  enum class Phase : std::uint8_t { kAway, kQueued, kFetching, kHere };
  struct Unit {
    Phase phase = Phase::kAway;
    bool is_stale = false;  // goes away when it is released
    std::uint32_t holds = 0;
    std::uint64_t last_use = 0;
    std::exception_ptr error;          // of the last fetch
    std::optional<void*> released_on;  // CUDA: the program's stream of the last release
  };
  // Thread-safe, and made at set-up.
  struct Events {
    std::unique_ptr<device::Event> fetched;   // on the stream of copies
    std::unique_ptr<device::Event> released;  // on the program's, after all releases of the unit
  };
  bool has_window(std::uint32_t unit) const { return windows_.slots_of(unit) > 0; }
  bool is_fetching() const SLUICE_REQUIRES(mutex_);
  void drop_last_queued() SLUICE_REQUIRES(mutex_);
  void wait_for_fetch(MutexLock& lock) SLUICE_REQUIRES(mutex_);
  void wait_until_here(MutexLock& lock, std::uint32_t unit) SLUICE_REQUIRES(mutex_);
  void queue_demand(MutexLock& lock, std::uint32_t unit) SLUICE_REQUIRES(mutex_);
  void look_ahead() SLUICE_REQUIRES(mutex_);
  bool try_claim(std::uint32_t unit, std::uint64_t least) SLUICE_REQUIRES(mutex_);
  std::uint64_t eviction_rank(std::uint32_t unit) const SLUICE_REQUIRES(mutex_);
  device::Stream& program_stream(void* native);
  void run();
  std::uint64_t fetch(std::uint32_t unit, const std::vector<std::uint32_t>& former);

  struct Streams {
    // The stream of the thread that fetches.
    std::unique_ptr<device::Stream> copies;
    std::array<std::unique_ptr<device::Event>, kPageInPieces> piece_copied;
    std::unordered_map<void*, std::unique_ptr<device::Stream>> of_program;  // by native handle
    std::vector<Events> events;                                             // by unit
  };
  struct Work {
    std::deque<std::uint32_t> queue;
    Counters counters;
    bool stops = false;
  };

  HostEngine& engine_;
  const std::vector<PagedUnit>& paged_;
  UnitHomes& homes_;
  Streams streams_;
  UnitWindows windows_;  // claims are guarded by mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Unit> units_ SLUICE_GUARDED_BY(mutex_);
  UseRecord record_ SLUICE_GUARDED_BY(mutex_);
  Work work_ SLUICE_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace sluice::host
