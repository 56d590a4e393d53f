#include "tools/replay/own_policies.hpp"

#include <utility>
#include <vector>

#include "allocator/oom/replayed_allocator.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::replay {
namespace {

class OwnPolicy final : public ReplayPolicy {
 public:
  OwnPolicy(const record::MemoryTrace& trace, const allocator::ReplayedAllocatorOptions& options)
      : allocator_(trace, options) {
    try {
      allocator_.adopt();
    } catch (const OutOfMemory&) {
      fits_ = false;
    }
  }

  std::optional<std::uint64_t> allocate(std::uint32_t id) override {
    try {
      return reinterpret_cast<std::uint64_t>(allocator_.allocate(id));
    } catch (const OutOfMemory&) {
      return std::nullopt;
    }
  }
  bool is_adopted() const override { return fits_; }
  void free(std::uint32_t id, bool pending) override { allocator_.free(id, pending); }
  void complete(std::uint32_t id) override { allocator_.complete(id); }
  void step() override { allocator_.step(); }
  void flush() override { allocator_.flush(); }
  std::uint64_t initial_address(std::uint32_t id) const override {
    return reinterpret_cast<std::uint64_t>(allocator_.address(id));
  }
  std::uint64_t reserved_bytes() const override {
    return allocator_.device().counters().live_bytes;
  }
  // In the first planned step, memory that earlier steps had cached still serves some requests.
  bool is_steady() const override {
    return allocator_.planning() == nullptr ||
           allocator_.planning()->statistics().planned_step_count >= 1;
  }

  PolicyCounters counters() const override {
    const allocator::CachingAllocatorStatistics statistics = allocator_.caching().statistics();
    PolicyCounters counters;
    counters.reserved_bytes = statistics.reserved_bytes;
    counters.peak_reserved_bytes = statistics.peak_reserved_bytes;
    counters.driver_allocations = allocator_.device().counters().allocation_calls;
    counters.flushes = statistics.flushes;
    counters.remaps = statistics.remaps;
    counters.synchronisations = statistics.synchronisations;
    counters.event_waits = statistics.event_waits;
    if (allocator_.planning() != nullptr) {
      const allocator::PlanningAllocatorStatistics planned = allocator_.planning()->statistics();
      counters.event_waits += planned.event_waits;
      counters.planned_count = planned.planned_count;
      counters.fallback_count = planned.fallback_count;
    }
    return counters;
  }

 private:
  mutable allocator::ReplayedAllocator allocator_;  // statistics settle the caches of threads
  bool fits_ = true;                                // the blocks that the record begins with
};

}  // namespace

NamedPolicy dynamic_policy(const allocator::CachingAllocatorOptions& options) {
  return {"dynamic", [options](const record::MemoryTrace& trace, std::uint64_t capacity_bytes) {
            allocator::ReplayedAllocatorOptions replayed;
            replayed.capacity_bytes = capacity_bytes;
            replayed.caching = options;
            return std::make_unique<OwnPolicy>(trace, replayed);
          }};
}

NamedPolicy planned_policy(packing::PackingEffort effort) {
  struct Made {
    allocator::StepRecording before;
    allocator::StepRecording step;
    allocator::StepPlan plan;
  };
  const auto made = std::make_shared<std::vector<Made>>();
  const auto plan = [effort, made](const allocator::StepRecording& before,
                                   const allocator::StepRecording& step) {
    for (const Made& one : *made) {
      if (one.step == step && one.before == before) return one.plan;
    }
    made->push_back({before, step, allocator::plan_step(before, step, effort)});
    return made->back().plan;
  };
  return {"planned", [plan](const record::MemoryTrace& trace, std::uint64_t capacity_bytes) {
            allocator::ReplayedAllocatorOptions replayed;
            replayed.capacity_bytes = capacity_bytes;
            replayed.planning.emplace().plan = plan;
            replayed.planning->in_background = false;  // so that each replay is the same
            return std::make_unique<OwnPolicy>(trace, replayed);
          }};
}

record::MemorySnapshot snapshot_after(const record::MemoryTrace& trace, bool planned) {
  // Room for the events of mapping pages, an allocation and its free. If there are more events, the
  // recorder drops the oldest.
  record::MemoryRecorder recorder(4 * trace.operations.size() + trace.allocations.size() + 1);
  for (const std::string& name : trace.names) recorder.intern(name);
  allocator::ReplayedAllocatorOptions options;
  options.caching.recorder = &recorder;
  if (planned) options.planning.emplace().in_background = false;
  allocator::ReplayedAllocator allocator(trace, options);
  try {
    allocator.adopt();
    for (const record::TraceOperation& operation : trace.operations) {
      if (operation.action != record::TraceAction::kRefused) allocator.follow(operation);
    }
  } catch (const OutOfMemory&) {
    throw InputError("'" + trace.source + "' must fit in " +
                     format_bytes(allocator.device().facts().capacity_bytes) +
                     " for a snapshot: no simulated device is larger");
  }
  return planned ? allocator.planning()->snapshot() : allocator.caching().snapshot();
}

}  // namespace sluice::replay
