#include "kernels/host/parallel.hpp"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>

#include <algorithm>
#include <atomic>

#include "base/error.hpp"
#include "kernels/host/ieee_arithmetic.hpp"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice::host {
namespace {

// On a lambda that another thread may run: its captures are read before take() can be.
#if defined(__SANITIZE_THREAD__)
#define SLUICE_READS_BEFORE_TAKE __attribute__((no_sanitize("thread")))
#else
#define SLUICE_READS_BEFORE_TAKE
#endif

// Tells ThreadSanitizer what oneTBB orders inside a library that it cannot see into: what was done
// before give() is seen after take(). Nothing in other builds.
class HandOver {
 public:
#if defined(__SANITIZE_THREAD__)
  void give() {
    __tsan_release(this);
  }
  void take() {
    __tsan_acquire(this);
  }
#else
  void give() {}
  void take() {}
#endif

 private:
  [[maybe_unused]] char address_ = 0;
};

}  // namespace

int Parallel::default_threads() {
  return tbb::info::default_concurrency();
}

Parallel::Parallel(int threads)
    : threads_(threads == 0 ? default_threads() : threads),
      // An arena above the cores makes oneTBB print a warning; the surplus workers just take turns.
      arena_(std::min(threads_, default_threads()), 1) {
  SLUICE_CHECK(threads >= 0);
}

int Parallel::workers(std::int64_t count) const {
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, threads_));
}

void Parallel::for_each_worker(std::int64_t count,
                               const std::function<void(std::int64_t, int)>& body) const {
  const int team = workers(count);
  if (team == 1) {
    const IeeeArithmetic ieee;
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  // One task per worker, each taking the next piece until none is left: pieces of unequal weight
  // balance, and a worker's number does not depend on where oneTBB places the task.
  std::atomic<std::int64_t> next{0};
  HandOver begin, end;
  const auto run_worker = [&](int worker) {
    const IeeeArithmetic ieee;
    try {
      // Relaxed: pieces are independent, and ThreadSanitizer is to see that they are.
      while (true) {
        const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
        if (i >= count) break;
        body(i, worker);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);  // nobody begins another piece
      throw;
    }
  };
  const auto run_team = [&]() SLUICE_READS_BEFORE_TAKE {
    begin.take();
    tbb::parallel_for(
        tbb::blocked_range<int>(0, team, 1),
        [&](const tbb::blocked_range<int>& range) SLUICE_READS_BEFORE_TAKE {
          begin.take();
          for (int worker = range.begin(); worker != range.end(); ++worker) run_worker(worker);
          end.give();
        },
        tbb::simple_partitioner());
    end.give();
  };
  begin.give();
  arena_.execute(run_team);  // by this thread or, where the arena is full, by one of its workers
  end.take();
}

void Parallel::for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const {
  for_each_worker(count, [&body](std::int64_t index, int) { body(index); });
}

void Parallel::for_blocks(std::int64_t elems, std::int64_t block,
                          const std::function<void(std::int64_t, std::int64_t)>& body) const {
  SLUICE_CHECK(block > 0);
  for_each((elems + block - 1) / block,
           [&](std::int64_t index) { body(index * block, std::min(elems, (index + 1) * block)); });
}

}  // namespace sluice::host
