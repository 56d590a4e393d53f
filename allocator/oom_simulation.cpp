#include "allocator/oom_simulation.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "allocator/planning_allocator.hpp"
#include "base/error.hpp"
#include "device/counting/counting_device.hpp"

namespace sluice {
namespace {

CachingAllocatorOptions without_recorder(CachingAllocatorOptions options) {
  options.recorder = nullptr;
  options.soft_cap_bytes = UINT64_MAX;  // nobody is asked here
  return options;
}

PlanningAllocatorOptions planning_options() {
  PlanningAllocatorOptions options;
  options.in_background = false;  // so that each run is the same
  return options;
}

class Simulation {
 public:
  Simulation(const MemoryTrace& trace, const SimulatedAllocator& settings)
      : trace_(trace),
        settings_(settings),
        device_(settings.capacity_bytes),
        ledger_({settings.capacity_bytes, 0, 0}),
        pages_(device_, ledger_, kPageBytes),
        others_(device_.create_stream("others")),
        allocator_(device_, pages_, without_recorder(settings.options)),
        addresses_(trace.allocations.size()),
        holds_(trace.allocations.size()) {
    if (settings.plans) {
      planner_ = std::make_unique<PlanningAllocator>(device_, allocator_, planning_options());
    }
    for (const TraceAllocation& allocation : trace.allocations) {
      ids_.try_emplace({allocation.stream, allocation.pool});
    }
    for (auto& [key, id] : ids_) {
      const auto& fixed = settings.fixed_streams;
      const bool is_fixed =
          key.second != 0 || std::find(fixed.begin(), fixed.end(), key.first) != fixed.end();
      streams_.push_back(device_.create_stream("stream " + std::to_string(key.first)));
      id = add_stream(*streams_.back(), settings.all_movable || !is_fixed);
      stream_names_.push_back(key.first);
    }
    others_id_ = add_stream(*others_, true);
  }

  SimulationOutcome run() {
    outcome_.failed_at_start = true;
    try {
      adopt();
      outcome_.failed_at_start = false;
      for (const TraceOperation& operation : trace_.operations) {
        if (&operation == &trace_.operations.back()) {
          for (const std::uint32_t id : settings_.freed_before_last) free(id, false);
        }
        follow(operation);
        ++outcome_.operation_count;
      }
      outcome_.completed = true;
    } catch (const OutOfMemoryReported& error) {
      outcome_.report = in_words_of_trace(*error.report);
    }
    outcome_.peak_reserved_bytes = allocator_.statistics().peak_reserved_bytes;
    return std::move(outcome_);
  }

 private:
  StreamId add_stream(Stream& stream, bool movable) {
    return planner_ ? planner_->add_stream(stream, movable)
                    : allocator_.add_stream(stream, movable);
  }

  void follow(const TraceOperation& operation) {
    switch (operation.action) {
      case TraceAction::kAlloc:
        allocate(operation.allocation);
        break;
      case TraceAction::kFree:
        free(operation.allocation, false);
        break;
      case TraceAction::kFreePending:
        free(operation.allocation, true);
        break;
      case TraceAction::kFreeCompleted:
        if (auto& hold = holds_[operation.allocation]) hold->released = true;
        break;
      case TraceAction::kStep:
        planner_ ? planner_->begin_step() : allocator_.begin_step();
        if (settings_.releases_each_step) allocator_.release_cached();
        break;
      case TraceAction::kFlush:
        allocator_.release_cached();
        break;
    }
  }

  void allocate(std::uint32_t id) {
    const TraceAllocation& allocation = trace_.allocations[id];
    const std::pair key(allocation.stream, allocation.pool);
    if (last_ == ids_.end() || last_->first != key) last_ = ids_.find(key);
    const AllocationRequest request{allocation.bytes, last_->second, allocation.category,
                                    allocation.name};
    addresses_[id] = planner_ ? planner_->allocate(request) : allocator_.allocate(request);
  }

  void free(std::uint32_t id, bool pending) {
    std::byte* const data = std::exchange(addresses_[id], nullptr);
    if (pending && data != nullptr) {
      holds_[id] = std::make_shared<CountingDevice::Hold>();
      planner_ ? planner_->record_use(data, others_id_) : allocator_.record_use(data, others_id_);
      device_.hold_events(holds_[id]);
    }
    planner_ ? planner_->free(data) : allocator_.free(data);
    if (pending) device_.hold_events(nullptr);
  }

  // What was held when the record began is allocated anew: the layout it had is not repeated.
  void adopt() {
    for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
      const std::vector<SnapshotBlock>& blocks = trace_.initial_segments[s].blocks;
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        if (blocks[b].state == BlockState::kFree) continue;
        const std::uint32_t id = trace_.initial_ids[s][b];
        allocate(id);
        if (blocks[b].state == BlockState::kPendingFree) free(id, true);
      }
    }
  }

  std::shared_ptr<const OomReport> in_words_of_trace(OomReport report) const {
    report.stream = stream_names_[report.stream];
    std::erase_if(report.streams,
                  [&](const OomStream& stream) { return stream.stream == others_id_; });
    for (OomStream& stream : report.streams) stream.stream = stream_names_[stream.stream];
    const auto name_of = [&](std::uint32_t number) {
      return number < trace_.names.size() ? trace_.names[number] : std::string();
    };
    report.site = name_of(report.site_number);
    for (OomSite& site : report.sites) {
      if (site.name.empty()) site.name = name_of(site.number);
    }
    return std::make_shared<const OomReport>(std::move(report));
  }

  const MemoryTrace& trace_;
  const SimulatedAllocator& settings_;
  CountingDevice device_;
  Ledger ledger_;
  PagePool pages_;
  std::unique_ptr<Stream> others_;  // whose uses a free that is pending waits for
  std::vector<std::unique_ptr<Stream>> streams_;
  CachingAllocator allocator_;
  std::unique_ptr<PlanningAllocator> planner_;  // null: none; goes before the allocator
  StreamId others_id_ = 0;
  using StreamIds = std::map<std::pair<std::uint64_t, std::uint64_t>, StreamId>;
  StreamIds ids_;  // by stream and pool
  StreamIds::const_iterator last_ = ids_.end();
  std::vector<std::uint64_t> stream_names_;  // by id
  std::vector<std::byte*> addresses_;
  std::vector<std::shared_ptr<CountingDevice::Hold>> holds_;
  SimulationOutcome outcome_;
};

}  // namespace

SimulationOutcome simulate(const MemoryTrace& trace, const SimulatedAllocator& allocator) {
  return Simulation(trace, allocator).run();
}

}  // namespace sluice
