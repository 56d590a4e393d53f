#include "tools/replay/replay_trace.hpp"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice {
namespace {

// Checks that no two held allocations share a byte, and writes down where each lay.
class Placements {
 public:
  Placements(const MemoryTrace& trace, std::vector<PlacedAllocation>& placed)
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
  void finish(std::size_t position) {
    while (!held_.empty()) remove(held_.begin()->second.allocation, position);
  }

 private:
  const MemoryTrace& trace_;
  std::vector<PlacedAllocation>& placed_;
  std::map<std::uint64_t, PlacedAllocation> held_;
  std::vector<std::uint64_t> addresses_;
};

}  // namespace

double ReplayOutcome::fragmentation() const {
  if (peak_reserved_bytes == 0) return 0.0;
  return 1.0 - static_cast<double>(peak_live_bytes) / static_cast<double>(peak_reserved_bytes);
}

ReplayOutcome replay_trace(const MemoryTrace& trace, const NamedPolicy& policy,
                           std::uint64_t capacity_bytes, std::vector<PlacedAllocation>* placed) {
  ReplayOutcome outcome;
  outcome.peak_live_bytes = peak_live_bytes(trace);
  const auto replayed = policy.make(trace, capacity_bytes);
  std::optional<Placements> placements;
  if (placed != nullptr) placements.emplace(trace, *placed);
  const auto begin = std::chrono::steady_clock::now();
  outcome.completed = true;
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    const TraceOperation& operation = trace.operations[i];
    switch (operation.action) {
      case TraceAction::kAlloc: {
        const auto address = replayed->allocate(operation.allocation);
        if (!address) {
          outcome.completed = false;
          outcome.failed_operation = i;
          break;
        }
        if (placements) placements->add(operation.allocation, *address, i);
        break;
      }
      case TraceAction::kFree:
      case TraceAction::kFreePending:
        if (placements) placements->remove(operation.allocation, i);
        replayed->free(operation.allocation, operation.action == TraceAction::kFreePending);
        break;
      case TraceAction::kFreeCompleted:
        replayed->complete(operation.allocation);
        break;
      case TraceAction::kStep:
        replayed->step();
        break;
      case TraceAction::kFlush:
        replayed->flush();
        break;
    }
    if (!outcome.completed) break;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  outcome.seconds = taken.count();
  if (placements) placements->finish(trace.operations.size());
  outcome.counters = replayed->counters();
  outcome.peak_reserved_bytes = outcome.counters.peak_reserved_bytes;
  return outcome;
}

std::uint64_t least_capacity_bytes(const MemoryTrace& trace, const NamedPolicy& policy,
                                   std::uint64_t above_bytes) {
  constexpr std::uint64_t kStep = 2 * kMiB;
  std::uint64_t low = peak_live_bytes(trace) / kStep;  // may fail; one less must
  std::uint64_t high = round_up(above_bytes, kStep) / kStep;
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

}  // namespace sluice
