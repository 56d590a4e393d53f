#include "tools/replay/own_policies.hpp"

#include <map>
#include <utility>
#include <vector>

#include "device/counting/counting_device.hpp"

namespace sluice {
namespace {

// The CachingAllocator, behind a PlanningAllocator if it plans.
class OwnPolicy final : public ReplayPolicy {
 public:
  OwnPolicy(const MemoryTrace& trace, std::uint64_t capacity_bytes,
            const CachingAllocatorOptions& options,
            const std::optional<PlanningAllocatorOptions>& planning)
      : trace_(trace),
        device_(capacity_bytes),
        pages_(device_, ledger_, kPageBytes),
        allocator_(std::make_unique<CachingAllocator>(device_, pages_, options)),
        addresses_(trace.allocations.size()),
        holds_(trace.allocations.size()) {
    if (planning) {
      planner_ = std::make_unique<PlanningAllocator>(device_, *allocator_, *planning);
    }
    others_id_ = add_stream("others", true);
    adopt();
  }
  ~OwnPolicy() override {
    planner_.reset();
    allocator_.reset();  // before the streams
  }

  std::optional<std::uint64_t> allocate(std::uint32_t id) override {
    const TraceAllocation& allocation = trace_.allocations[id];
    const AllocationRequest request{allocation.bytes, stream_of(allocation.stream, allocation.pool),
                                    allocation.category, allocation.name};
    try {
      addresses_[id] = planner_ ? planner_->allocate(request) : allocator_->allocate(request);
    } catch (const OutOfMemory&) {
      return std::nullopt;
    }
    return reinterpret_cast<std::uint64_t>(addresses_[id]);
  }

  void free(std::uint32_t id, bool pending) override {
    std::byte* const data = std::exchange(addresses_[id], nullptr);
    if (pending && data != nullptr) {
      holds_[id] = std::make_shared<CountingDevice::Hold>();
      planner_ ? planner_->record_use(data, others_id_) : allocator_->record_use(data, others_id_);
      device_.hold_events(holds_[id]);
    }
    planner_ ? planner_->free(data) : allocator_->free(data);
    if (pending) device_.hold_events(nullptr);
  }

  void complete(std::uint32_t id) override {
    if (holds_[id] != nullptr) holds_[id]->released = true;
  }

  void step() override { planner_ ? planner_->begin_step() : allocator_->begin_step(); }
  void flush() override { allocator_->release_cached(); }
  std::uint64_t reserved_bytes() const override { return device_.counters().live_bytes; }
  // The first step that the plan served was also served by what the steps before it left.
  bool is_steady() const override {
    return planner_ == nullptr || planner_->statistics().planned_step_count >= 1;
  }

  MemorySnapshot snapshot() { return allocator_->snapshot(); }

  PolicyCounters counters() const override {
    const CachingAllocatorStatistics statistics = allocator_->statistics();
    PolicyCounters counters;
    counters.reserved_bytes = statistics.reserved_bytes;
    counters.peak_reserved_bytes = statistics.peak_reserved_bytes;
    counters.driver_allocations = device_.counters().allocation_calls;
    counters.flushes = statistics.flushes;
    counters.remaps = statistics.remaps;
    counters.synchronisations = statistics.synchronisations;
    counters.event_waits = statistics.event_waits;
    if (planner_) {
      const PlanningAllocatorStatistics planned = planner_->statistics();
      counters.event_waits += planned.event_waits;
      counters.planned_count = planned.planned_count;
      counters.fallback_count = planned.fallback_count;
    }
    return counters;
  }

 private:
  StreamId add_stream(const std::string& name, bool movable) {
    streams_.push_back(device_.create_stream(name));
    return planner_ ? planner_->add_stream(*streams_.back(), movable)
                    : allocator_->add_stream(*streams_.back(), movable);
  }
  // A private pool (of a graph) shares with no other: a stream of its own.
  StreamId stream_of(std::uint64_t stream, std::uint64_t pool) {
    if (last_stream_ && last_key_ == std::pair(stream, pool)) return *last_stream_;
    const auto [place, is_new] = ids_.try_emplace({stream, pool});
    if (is_new) place->second = add_stream("stream " + std::to_string(stream), pool == 0);
    last_key_ = {stream, pool};
    last_stream_ = place->second;
    return place->second;
  }

  // What was held when the record began is allocated anew: the layout it had there was another's.
  void adopt() {
    for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
      const std::vector<SnapshotBlock>& blocks = trace_.initial_segments[s].blocks;
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        const std::uint32_t id = trace_.initial_ids[s][b];
        if (blocks[b].state == BlockState::kFree || !allocate(id)) continue;
        if (blocks[b].state == BlockState::kPendingFree) free(id, true);
      }
    }
  }

  const MemoryTrace& trace_;
  CountingDevice device_;
  Ledger ledger_{{UINT64_MAX, 0, 0}};
  PagePool pages_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<CachingAllocator> allocator_;
  std::unique_ptr<PlanningAllocator> planner_;  // null: none
  StreamId others_id_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, StreamId> ids_;
  std::pair<std::uint64_t, std::uint64_t> last_key_;
  std::optional<StreamId> last_stream_;
  std::vector<std::byte*> addresses_;
  std::vector<std::shared_ptr<CountingDevice::Hold>> holds_;
};

}  // namespace

NamedPolicy dynamic_policy(const CachingAllocatorOptions& options) {
  return {"dynamic", [options](const MemoryTrace& trace, std::uint64_t capacity_bytes) {
            return std::make_unique<OwnPolicy>(trace, capacity_bytes, options, std::nullopt);
          }};
}

NamedPolicy planned_policy(PackingEffort effort) {
  struct Made {
    StepRecording before;
    StepRecording step;
    StepPlan plan;
  };
  const auto made = std::make_shared<std::vector<Made>>();
  const auto plan = [effort, made](const StepRecording& before, const StepRecording& step) {
    for (const Made& one : *made) {
      if (one.step == step && one.before == before) return one.plan;
    }
    made->push_back({before, step, plan_step(before, step, effort)});
    return made->back().plan;
  };
  return {"planned", [plan](const MemoryTrace& trace, std::uint64_t capacity_bytes) {
            PlanningAllocatorOptions planning;
            planning.plan = plan;
            planning.in_background = false;  // so that each replay is the same
            return std::make_unique<OwnPolicy>(trace, capacity_bytes, CachingAllocatorOptions{},
                                               planning);
          }};
}

MemorySnapshot snapshot_after(const MemoryTrace& trace, std::uint64_t capacity_bytes) {
  // An allocation maps some pages and is freed in two events; what is more is cut at the front.
  MemoryRecorder recorder(4 * trace.operations.size() + trace.allocations.size() + 1);
  for (const std::string& name : trace.names) recorder.intern(name);
  CachingAllocatorOptions options;
  options.recorder = &recorder;
  OwnPolicy policy(trace, capacity_bytes, options, std::nullopt);
  for (const TraceOperation& operation : trace.operations) {
    switch (operation.action) {
      case TraceAction::kAlloc:
        if (!policy.allocate(operation.allocation)) {
          throw OutOfMemory(Tier::kDevice, Category::kExternal,
                            trace.allocations[operation.allocation].bytes, 0);
        }
        break;
      case TraceAction::kFree:
        policy.free(operation.allocation, false);
        break;
      case TraceAction::kFreePending:
        policy.free(operation.allocation, true);
        break;
      case TraceAction::kFreeCompleted:
        policy.complete(operation.allocation);
        break;
      case TraceAction::kStep:
        policy.step();
        break;
      case TraceAction::kFlush:
        policy.flush();
        break;
    }
  }
  return policy.snapshot();
}

}  // namespace sluice
