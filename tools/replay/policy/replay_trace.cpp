// The loop that drives a policy by a trace.
//
// Tally tracks live and reserved bytes. From the step at which the policy becomes steady it also
// keeps peaks of their own, and the counters are then relative to that step. least_capacity_bytes
// bisects over capacities in steps of 2 MiB; below the peak of needed bytes no policy can succeed.
#include "tools/replay/policy/replay_trace.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::replay {
namespace {

// Checks that no two held allocations share a byte, and records the place of each.
class Placements {
 public:
  Placements(const record::MemoryTrace& trace, std::vector<PlacedAllocation>& placed)
      : trace_(trace), placed_(placed), addresses_(trace.allocations.size()) {}

  void add(std::uint32_t id, std::uint64_t address, std::size_t position) {
    const std::uint64_t bytes = trace_.allocations[id].bytes;
    if (bytes == 0) return;
    const auto after = held_.lower_bound(address);
    if (after != held_.end()) SLUICE_CHECK(address + bytes <= after->first);
    if (after != held_.begin()) {
      const auto before = std::prev(after);
      SLUICE_CHECK(before->first + trace_.allocations[before->second.allocation].bytes <= address);
    }
    held_.emplace(address, PlacedAllocation{id, address, position, 0});
    addresses_[id] = address;
  }
  void remove(std::uint32_t id, std::size_t position) {
    const auto found = held_.find(addresses_[id]);
    if (found == held_.end() || found->second.allocation != id) return;
    found->second.end = position;
    placed_.push_back(found->second);
    held_.erase(found);
  }
  void add_initial(const ReplayPolicy& policy) {
    for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
      const std::vector<record::SnapshotBlock>& blocks = trace_.initial_segments[s].blocks;
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        if (blocks[b].state != record::BlockState::kAllocated) continue;
        const std::uint32_t id = trace_.initial_ids[s][b];
        add(id, policy.initial_address(id), 0);
      }
    }
  }
  void finish(std::size_t position) {
    while (!held_.empty()) remove(held_.begin()->second.allocation, position);
  }

 private:
  const record::MemoryTrace& trace_;
  std::vector<PlacedAllocation>& placed_;
  std::map<std::uint64_t, PlacedAllocation> held_;
  std::vector<std::uint64_t> addresses_;
};

// Tracks live and reserved bytes during a replay, and their peaks.
class Tally {
 public:
  Tally(const ReplayPolicy& policy, std::uint64_t live_bytes)
      : policy_(policy), live_bytes_(live_bytes) {
    outcome.peak_live_bytes = live_bytes;
    step(0);
  }
  void grow(std::uint64_t bytes) {
    live_bytes_ += bytes;
    outcome.peak_live_bytes = std::max(outcome.peak_live_bytes, live_bytes_);
    if (outcome.was_steady) look();
  }
  void shrink(std::uint64_t bytes) { live_bytes_ -= bytes; }
  void fail(std::optional<std::size_t> operation) {
    outcome.completed = false;
    outcome.failed_operation = operation;
    outcome.failed_live_bytes = live_bytes_;
  }
  void step(std::size_t operation) {
    if (outcome.was_steady || !policy_.is_steady()) return;
    outcome.was_steady = true;
    outcome.steady_from = operation;
    before_ = policy_.counters();
    look();
  }
  void finish() {
    outcome.counters = policy_.counters();
    outcome.peak_reserved_bytes = outcome.counters.peak_reserved_bytes;
    if (!outcome.was_steady) return;
    PolicyCounters& steady = outcome.steady_counters;
    steady = outcome.counters;
    steady.driver_allocations -= before_.driver_allocations;
    steady.flushes -= before_.flushes;
    steady.remaps -= before_.remaps;
    steady.synchronisations -= before_.synchronisations;
    steady.event_waits -= before_.event_waits;
    steady.planned_count -= before_.planned_count;
    steady.fallback_count -= before_.fallback_count;
  }

  ReplayOutcome outcome;

 private:
  void look() {
    outcome.steady_peak_live_bytes = std::max(outcome.steady_peak_live_bytes, live_bytes_);
    outcome.steady_peak_reserved_bytes =
        std::max(outcome.steady_peak_reserved_bytes, policy_.reserved_bytes());
  }
  const ReplayPolicy& policy_;
  std::uint64_t live_bytes_;
  PolicyCounters before_;
};

}  // namespace

double ReplayOutcome::fragmentation() const {
  if (steady_peak_reserved_bytes == 0) return 0.0;
  return 1.0 - static_cast<double>(steady_peak_live_bytes) /
                   static_cast<double>(steady_peak_reserved_bytes);
}

ReplayOutcome replay_trace(const record::MemoryTrace& trace, const NamedPolicy& policy,
                           std::uint64_t capacity_bytes, ReplayRecord* record) {
  const auto replayed = policy.make(trace, capacity_bytes);
  std::optional<Placements> placements;
  if (record != nullptr) placements.emplace(trace, record->placed);
  Tally tally(*replayed, record::initial_live_bytes(trace));
  ReplayOutcome& outcome = tally.outcome;
  // Replicas adopt the memory that the trace begins with even if it does not fit.
  outcome.completed = replayed->is_adopted() && replayed->reserved_bytes() <= capacity_bytes;
  if (!outcome.completed) {
    tally.fail(std::nullopt);
    tally.finish();
    return outcome;
  }
  if (placements) placements->add_initial(*replayed);
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    const record::TraceOperation& operation = trace.operations[i];
    const std::uint32_t id = operation.allocation;
    switch (operation.action) {
      case record::TraceAction::kAlloc:
      case record::TraceAction::kRefused: {
        const auto address = replayed->allocate(id);
        if (!address) {
          tally.fail(i);
          break;
        }
        tally.grow(trace.allocations[id].bytes);
        if (placements) {
          placements->add(id, *address, i);
          record->samples.push_back({i, replayed->reserved_bytes()});
        }
        if (operation.action == record::TraceAction::kAlloc) break;
        tally.shrink(trace.allocations[id].bytes);
        if (placements) placements->remove(id, i + 1);
        replayed->free(id, false);
        break;
      }
      case record::TraceAction::kFree:
      case record::TraceAction::kFreePending:
        tally.shrink(trace.allocations[id].bytes);
        if (placements) placements->remove(id, i);
        replayed->free(id, operation.action == record::TraceAction::kFreePending);
        break;
      case record::TraceAction::kFreeCompleted:
        replayed->complete(id);
        break;
      case record::TraceAction::kStep:
        replayed->step();
        tally.step(i);
        break;
      case record::TraceAction::kFlush:
        replayed->flush();
        break;
      case record::TraceAction::kReleasePool:
        replayed->release_pool(id);
        break;
    }
    if (!outcome.completed) break;
  }
  if (placements) placements->finish(trace.operations.size());
  tally.finish();
  return outcome;
}

double replay_seconds(const record::MemoryTrace& trace, const NamedPolicy& policy, int rounds) {
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    const auto replayed = policy.make(trace, std::numeric_limits<std::uint64_t>::max());
    std::vector<bool> failed;  // by allocation; empty, and so not looked up, until one fails
    const auto is_held = [&](std::uint32_t id) { return failed.empty() || !failed[id]; };
    const auto begin = std::chrono::steady_clock::now();
    for (const record::TraceOperation& operation : trace.operations) {
      const std::uint32_t id = operation.allocation;
      switch (operation.action) {
        case record::TraceAction::kAlloc:
          if (replayed->allocate(id)) break;
          failed.resize(trace.allocations.size());
          failed[id] = true;
          break;
        case record::TraceAction::kFree:
        case record::TraceAction::kFreePending:
          if (is_held(id)) {
            replayed->free(id, operation.action == record::TraceAction::kFreePending);
          }
          break;
        case record::TraceAction::kFreeCompleted:
          if (is_held(id)) replayed->complete(id);
          break;
        case record::TraceAction::kStep:
          replayed->step();
          break;
        case record::TraceAction::kFlush:
          replayed->flush();
          break;
        case record::TraceAction::kReleasePool:
          replayed->release_pool(id);
          break;
        case record::TraceAction::kRefused:
          break;  // not a call that the caller's work consists of
      }
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count());
  }
  return least;
}

std::uint64_t least_capacity_bytes(const record::MemoryTrace& trace, const NamedPolicy& policy,
                                   std::uint64_t enough_bytes) {
  constexpr std::uint64_t kStep = 2 * kMiB;
  std::uint64_t low = round_up(peak_needed_bytes(trace), kStep) / kStep;  // a smaller one must fail
  std::uint64_t high = round_up(enough_bytes, kStep) / kStep;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (replay_trace(trace, policy, middle * kStep).completed) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high * kStep;
}

}  // namespace sluice::replay
