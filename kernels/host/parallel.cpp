// Runs pieces on teams of oneTBB workers.
//
// One call has one task per worker. Each worker takes the next piece from a list until none is
// left, so pieces of unequal cost balance, and a worker's number does not depend on oneTBB's
// placement. With several NUMA nodes there is one list per team; a worker takes from its own team's
// list first and then from the following teams' lists. Taking a piece is one atomic increment. The
// caller works in the first arena and then waits for the others. The first exception stops the
// lists and is rethrown by the caller. A call with one worker runs without oneTBB.
#include "kernels/host/parallel.hpp"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_group.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "kernels/host/ieee_arithmetic.hpp"
#include "kernels/host/node_binding.hpp"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice::kernels::host {
namespace {

// For a lambda that another thread may run: its captures are read before take() can be called.
#if defined(__SANITIZE_THREAD__)
#define SLUICE_READS_BEFORE_TAKE __attribute__((no_sanitize("thread")))
#else
#define SLUICE_READS_BEFORE_TAKE
#endif

// Tells ThreadSanitizer about ordering inside oneTBB, which it cannot see: work before give() is
// visible after take(). Empty in other builds.
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

// Pieces that have not begun: one list for all teams, or one for each, in ascending order.
class PieceLists {
 public:
  PieceLists(std::int64_t count, std::span<const std::size_t> homes, std::size_t teams)
      : count_(count), of_team_(homes.empty() ? 0 : teams), next_(homes.empty() ? 1 : teams) {
    for (std::size_t i = 0; i < homes.size(); ++i) {
      of_team_[homes[i]].push_back(static_cast<std::int64_t>(i));
    }
  }

  // Returns a piece for a worker of `team`: the next of its own list, or else of the following
  // teams' lists; `count` if all have begun. Relaxed order suffices because pieces are independent,
  // and it lets ThreadSanitizer verify that.
  std::int64_t take(std::size_t team) {
    if (of_team_.empty()) return next_[0].fetch_add(1, std::memory_order_relaxed);
    for (std::size_t step = 0; step < of_team_.size(); ++step) {
      const std::size_t from = (team + step) % of_team_.size();
      const auto at = static_cast<std::size_t>(next_[from].fetch_add(1, std::memory_order_relaxed));
      if (at < of_team_[from].size()) return of_team_[from][at];
    }
    return count_;
  }

  // Prevents further pieces from beginning.
  void stop() {
    for (auto& next : next_) next.store(count_, std::memory_order_relaxed);
  }

 private:
  const std::int64_t count_;
  std::vector<std::vector<std::int64_t>> of_team_;
  std::vector<std::atomic<std::int64_t>> next_;
};

// Keeps the first exception of several threads.
class FirstError {
 public:
  void keep(std::exception_ptr error) noexcept {
    const MutexLock lock(mutex_);
    if (first_ == nullptr) first_ = std::move(error);
  }
  // Call when all threads are done.
  void rethrow() {
    const MutexLock lock(mutex_);
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  Mutex mutex_;
  std::exception_ptr first_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace

int Parallel::default_threads() {
  return tbb::info::default_concurrency();
}

Parallel::Parallel(int threads)
    : Parallel(threads == 0 ? default_threads() : threads,
               has_several_numa_nodes() ? read_numa_machine() : nullptr) {}

Parallel::Parallel(int threads, std::shared_ptr<const NumaMachine> machine)
    : threads_(threads), machine_(std::move(machine)) {
  SLUICE_CHECK(threads >= 1);
  teams_ = machine_ == nullptr ? std::vector<NodeTeam>{{0, threads}}
                               : share_threads(machine_->nodes(), threads);
  if (threads == 1) return;  // the caller does all work, without an arena
  for (const NodeTeam& team : teams_) {
    // oneTBB prints a warning for an arena larger than the machine, so arenas are limited; surplus
    // workers take turns. Only the first arena reserves a slot for the caller, which works there.
    const bool first = arenas_.empty();
    const int most = first ? default_threads() : std::max(1, default_threads() - 1);
    arenas_.push_back(
        std::make_unique<tbb::task_arena>(std::min(team.threads, most), first ? 1 : 0));
  }
}

int Parallel::workers(std::int64_t count) const {
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, threads_));
}

void Parallel::for_each_worker(std::int64_t count,
                               const std::function<void(std::int64_t, int)>& body) const {
  run(count, {}, body);
}

void Parallel::run(std::int64_t count, std::span<const std::size_t> homes,
                   const std::function<void(std::int64_t, int)>& body) const {
  const int team = workers(count);
  if (team == 1) {
    const IeeeArithmetic ieee;
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  // One task per worker, each taking pieces until none is left (see the top of this file).
  PieceLists pieces(count, homes, teams_.size());
  FirstError error;
  const NumaMachine* const machine = teams_.size() == 1 ? nullptr : machine_.get();
  run_teams(share_workers(teams_, team), [&](std::size_t node_team, int worker) {
    const IeeeArithmetic ieee;
    const NodeBinding binding(machine, teams_[node_team].node, unbound_logged_);
    try {
      for (std::int64_t i; (i = pieces.take(node_team)) < count;) body(i, worker);
    } catch (...) {
      pieces.stop();
      error.keep(std::current_exception());
    }
  });
  error.rethrow();
}

// Calls run_worker(team, worker) once per worker, seats[i] of them in team i. run_worker must not
// throw.
void Parallel::run_teams(std::span<const int> seats,
                         const std::function<void(std::size_t, int)>& run_worker) const {
  HandOver begin, end;
  const auto run_team = [&](std::size_t team) SLUICE_READS_BEFORE_TAKE {
    begin.take();
    const int first = std::accumulate(seats.begin(), seats.begin() + static_cast<long>(team), 0);
    tbb::parallel_for(
        tbb::blocked_range<int>(first, first + seats[team], 1),
        [&, team](const tbb::blocked_range<int>& range) SLUICE_READS_BEFORE_TAKE {
          begin.take();
          for (int worker = range.begin(); worker != range.end(); ++worker) {
            run_worker(team, worker);
          }
          end.give();
        },
        tbb::simple_partitioner());
    end.give();
  };
  begin.give();
  // Start the other teams, work in the first one, then wait for the others.
  std::vector<tbb::task_group> others(arenas_.size());
  const auto in_arena = [&](std::size_t team, const std::function<void()>& act) {
    if (seats[team] > 0) arenas_[team]->execute(act);
  };
  for (std::size_t team = 1; team < arenas_.size(); ++team) {
    in_arena(team, [&, team] { others[team].run([&run_team, team] { run_team(team); }); });
  }
  // Runs on this thread or, if the arena is full, on one of its workers.
  in_arena(0, [&] { run_team(0); });
  for (std::size_t team = 1; team < arenas_.size(); ++team) {
    in_arena(team, [&, team] { others[team].wait(); });
  }
  end.take();
}

std::vector<std::size_t> Parallel::homes_of(const ElementMemory& memory, std::int64_t count,
                                            std::int64_t block) const {
  std::vector<const void*> addresses;
  for (std::int64_t i = 0; i < count; ++i) {
    addresses.push_back(static_cast<const std::byte*>(memory.data) +
                        static_cast<std::uint64_t>(i * block) * memory.elem_bytes);
  }
  std::vector<int> nodes(addresses.size(), -1);
  const int refused = machine_->find_pages(addresses, nodes);
  if (refused != 0 && !pages_unknown_logged_.exchange(true)) {
    log(LogLevel::kInfo, std::string("the system does not report the nodes of pages (") +
                             std::strerror(refused) + "); NUMA nodes share updates evenly");
  }
  std::vector<std::size_t> homes;
  for (std::int64_t i = 0; i < count; ++i) {
    const int node = refused != 0 ? -1 : nodes[static_cast<std::size_t>(i)];
    const auto team = std::find_if(teams_.begin(), teams_.end(), [node](const NodeTeam& candidate) {
      return static_cast<int>(candidate.node) == node;
    });
    homes.push_back(team == teams_.end() ? team_of_piece(teams_, i, count)
                                         : static_cast<std::size_t>(team - teams_.begin()));
  }
  return homes;
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

void Parallel::for_blocks_near(const ElementMemory& memory, std::int64_t elems, std::int64_t block,
                               const std::function<void(std::int64_t, std::int64_t)>& body) const {
  SLUICE_CHECK(block > 0);
  const std::int64_t count = (elems + block - 1) / block;
  const bool several = teams_.size() > 1 && workers(count) > 1;
  run(count, several ? homes_of(memory, count, block) : std::vector<std::size_t>(),
      [&](std::int64_t index, int) { body(index * block, std::min(elems, (index + 1) * block)); });
}

}  // namespace sluice::kernels::host
