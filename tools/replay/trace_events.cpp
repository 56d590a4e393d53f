#include "tools/replay/trace_events.hpp"

#include <map>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::replay {
namespace {

constexpr std::size_t kMostPools = 65536;  // MemoryEvent::pool

// Addresses that no two allocations of the trace share.
std::vector<std::uint64_t> addresses_of(const record::MemoryTrace& trace) {
  std::uint64_t next = std::uint64_t{1} << 46;
  std::vector<std::uint64_t> addresses;
  addresses.reserve(trace.allocations.size());
  for (const record::TraceAllocation& allocation : trace.allocations) {
    addresses.push_back(next);
    next += round_up(allocation.bytes, 512) + 512;
  }
  return addresses;
}

}  // namespace

record::MemorySnapshot events_of(const record::MemoryTrace& trace) {
  record::MemorySnapshot snapshot;
  snapshot.names = trace.names;
  const std::vector<std::uint64_t> addresses = addresses_of(trace);
  std::map<std::uint64_t, std::uint16_t> pools{{0, 0}};  // numbered as they come
  const auto number_of = [&](std::uint64_t pool) {
    const auto next_pool = static_cast<std::uint16_t>(pools.size());
    const std::uint16_t number = pools.try_emplace(pool, next_pool).first->second;
    if (pools.size() > kMostPools) {
      throw InputError("'" + trace.source + "' has more than 65,535 private pools");
    }
    return number;
  };
  const auto add = [&](record::MemoryAction action, std::uint32_t id) {
    const record::TraceAllocation& allocation = trace.allocations[id];
    snapshot.events.push_back({action, allocation.category, number_of(allocation.pool),
                               allocation.name, allocation.stream, addresses[id], allocation.bytes,
                               static_cast<std::int64_t>(snapshot.events.size())});
  };
  for (std::size_t s = 0; s < trace.initial_ids.size(); ++s) {
    for (std::size_t b = 0; b < trace.initial_ids[s].size(); ++b) {
      const record::BlockState state = trace.initial_segments[s].blocks[b].state;
      if (state == record::BlockState::kFree) continue;
      add(record::MemoryAction::kAlloc, trace.initial_ids[s][b]);
      if (state == record::BlockState::kPendingFree) {
        add(record::MemoryAction::kFreeRequested, trace.initial_ids[s][b]);
      }
    }
  }
  auto refused = trace.refused.begin();
  for (const record::TraceOperation& operation : trace.operations) {
    switch (operation.action) {
      case record::TraceAction::kAlloc:
        add(record::MemoryAction::kAlloc, operation.allocation);
        break;
      case record::TraceAction::kFree:
        add(record::MemoryAction::kFreeRequested, operation.allocation);
        add(record::MemoryAction::kFreeCompleted, operation.allocation);
        break;
      case record::TraceAction::kFreePending:
        add(record::MemoryAction::kFreeRequested, operation.allocation);
        break;
      case record::TraceAction::kFreeCompleted:
        add(record::MemoryAction::kFreeCompleted, operation.allocation);
        break;
      case record::TraceAction::kStep:
        snapshot.events.push_back({.action = record::MemoryAction::kStep,
                                   .time_ns = static_cast<std::int64_t>(snapshot.events.size())});
        break;
      case record::TraceAction::kFlush:
        snapshot.events.push_back({.action = record::MemoryAction::kFlush,
                                   .time_ns = static_cast<std::int64_t>(snapshot.events.size())});
        break;
      case record::TraceAction::kReleasePool:
        snapshot.events.push_back({.action = record::MemoryAction::kFlush,
                                   .pool = number_of(operation.allocation),
                                   .time_ns = static_cast<std::int64_t>(snapshot.events.size())});
        break;
      case record::TraceAction::kRefused:
        add(record::MemoryAction::kOutOfMemory, operation.allocation);
        snapshot.events.back().address =
            refused == trace.refused.end() ? 0 : (refused++)->device_free_bytes;
        break;
    }
  }
  return snapshot;
}

}  // namespace sluice::replay
