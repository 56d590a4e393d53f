// For callers that do the same in every step but only call allocate and free: watches steps, plans
// one, and from then on answers out of an arena by comparing with the plan.
//
// While steps are watched, and wherever a call is not the one the plan expects (another size or
// stream, an allocation that comes too early or not at all), the CachingAllocator answers. Memory
// of the arena is handed out in the plan's order only, so a call that is in step needs no search
// and no check; what is freed later than planned is remembered and nothing is put on top of it.
// Where a place passes from one stream to another, the second waits for an event of the first. The
// arena is one block of the CachingAllocator, stitched from free pages between two steps; once for
// each plan, after its first step, the host waits for the streams so that what the steps before
// needed can be given back. A request that finds no room beside an arena that is not in use gets it
// dropped. Blocks of streams that are not movable are never planned. A recorder is told of what
// lies in the arena, and not of the arena; that other streams still use what was freed there it is
// not told: who comes next in the plan's order waits for them.
//
// Thread-safe: one lock. The order of calls is the caller's; threads whose calls interleave
// differently in each step find no plan.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "allocator/caching/caching_allocator.hpp"
#include "allocator/caching/step_plan.hpp"
#include "allocator/record/spin_lock.hpp"

namespace sluice::allocator {

class OutOfMemoryReported;

struct PlanningAllocatorOptions {
  // Makes a plan of two steps in a row; pure, called on a thread of its own where in_background.
  std::function<StepPlan(const StepRecording& before, const StepRecording& step)> plan =
      [](const StepRecording& before, const StepRecording& step) {
        return plan_step(before, step, packing::PackingEffort::kThorough);
      };
  // Of the allocations of two steps in a row: plan where so many are alike, watch again where fewer
  // than these were answered by the plan in two steps in a row.
  double least_match = 0.9;
  bool in_background = true;  // plan on a thread of its own; else within begin_step()
};

struct PlanningAllocatorStatistics {
  std::uint64_t planned_count = 0;   // allocations answered from the arena
  std::uint64_t fallback_count = 0;  // while a plan was there, but answered by the other
  std::uint64_t arena_bytes = 0;     // 0: no plan
  std::uint64_t arena_live_bytes = 0;
  // Requested bytes of what lies in the arena, and in those of plans dropped since.
  std::array<std::uint64_t, kCategoryCount> arena_live_by_category{};
  std::uint64_t plan_count = 0;
  std::uint64_t event_waits = 0;
  std::uint64_t diverged_steps = 0;
  std::uint64_t step_count = 0;          // begin_step() calls
  std::uint64_t planned_step_count = 0;  // steps that the plan in use has served; 0: none
};

class PlanningAllocator {
 public:
  // Streams are added here, and only here, while this lives; `allocator` must outlive it.
  PlanningAllocator(device::Device& device, CachingAllocator& allocator,
                    const PlanningAllocatorOptions& options = {});
  // Whoever still uses a block of the arena must be done.
  ~PlanningAllocator();
  PlanningAllocator(const PlanningAllocator&) = delete;
  PlanningAllocator& operator=(const PlanningAllocator&) = delete;

  // As CachingAllocator's.
  StreamId add_stream(device::Stream& stream, bool movable = true);
  std::byte* allocate(const AllocationRequest& request);
  void free(std::byte* data);
  void record_use(std::byte* data, StreamId stream);

  // A step begins: the one before is compared, planned, or put to use.
  void begin_step();
  PlanningAllocatorStatistics statistics();
  // As CachingAllocator's, with the blocks that lie in arenas in their places. Callers of other
  // threads wait meanwhile.
  record::MemorySnapshot snapshot();

 private:
  // What a block was asked for.
  struct Tenant {
    std::uint64_t bytes = 0;
    StreamId stream = 0;
    std::uint32_t name = 0;
    Category category = Category::kExternal;
  };
  // A planned buffer as it stands.
  struct Place {
    bool live = false;
    bool late = false;  // live, although the plan says it is free by now
    // When it was freed last, by the count of steps, and where the plan frees it, in its events.
    std::uint64_t freed_step = UINT64_MAX;
    std::size_t free_index = 0;
    std::uint32_t slot = 0;                                // of its offset, among all offsets
    Tenant tenant;                                         // while live
    std::vector<StreamId> uses;                            // other streams', since it was allocated
    std::vector<std::shared_ptr<device::Event>> releases;  // by PlannedBuffer::release_streams
  };
  struct Arena {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t live_count = 0;
    std::map<std::uint64_t, Tenant> tenants;  // by offset; of a dropped plan's only
    bool holds(const std::byte* address) const { return address >= data && address < data + bytes; }
  };
  struct Call {
    StreamId stream = 0;
    std::uint64_t bytes = 0;
  };
  // An allocation that was watched.
  struct Origin {
    std::uint64_t step = 0;
    std::uint32_t number = 0;
    std::vector<StreamId> uses;
  };

  // All with mutex_ held.
  bool has_plan() const { return arena_.data != nullptr; }
  std::byte* allocate_unplanned(const AllocationRequest& request);  // without mutex_
  [[noreturn]] void throw_with_arenas(const OutOfMemoryReported& error);
  std::byte* allocate_planned(const AllocationRequest& request, const Call& call);
  std::byte* hand_out(std::uint32_t buffer, const AllocationRequest& request);
  void pass_frees();
  bool overlaps_late(const PlannedBuffer& buffer) const;
  void find_place_again(const Call& call);
  void wait_for_all_others(StreamId stream);
  void free_planned(std::uint32_t buffer);
  std::uint32_t holder_of(const std::byte* data) const;
  void end_planned_step();
  // Makes the plan, or waits for what makes it: to be called without the lock. Empty: none.
  std::function<StepPlan()> end_watched_step();
  void drop_plan();
  void give_back(const Arena& arena);
  void tell_free(const std::byte* data, const Tenant& tenant);
  struct ArenaBlocks {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::vector<record::SnapshotBlock> blocks;  // that are live, by address
  };
  std::vector<ArenaBlocks> blocks_in_arenas() const;
  record::MemorySnapshot snapshot_locked();
  void record_allocation(const std::byte* data, const Call& call);
  void record_free(const std::byte* data);

  void install(StepPlan plan);  // without mutex_
  void prepare(const StepPlan& plan);

  device::Device& device_;
  CachingAllocator& allocator_;
  record::MemoryRecorder* const recorder_;  // null: none
  const PlanningAllocatorOptions options_;

  // Guards all below; taken before any of the CachingAllocator's. A call in step holds it for some
  // ns.
  record::SpinLock mutex_;
  std::vector<device::Stream*> streams_;
  std::vector<bool> movable_;  // by stream; blocks of those that are not are never planned

  // The plan, and where the step stands in it.
  StepPlan plan_;
  Arena arena_;
  std::vector<Place> places_;           // by buffer
  std::vector<std::uint64_t> offsets_;  // that buffers begin at, ascending
  std::vector<std::uint32_t> holders_;  // by slot: the buffer that was last handed out there
  std::size_t cursor_ = 0;              // the event that is expected next
  std::vector<std::uint32_t> late_;
  std::vector<Call> strangers_;  // the last calls in a row that were not expected
  bool has_waits_ = false;       // places of the plan pass between streams
  // Something was skipped in this step, or freed in another order: the plan's waits may not
  // suffice.
  bool diverged_ = false;
  std::uint64_t step_planned_count_ = 0;
  std::uint64_t plan_allocation_count_ = 0;
  std::uint32_t bad_steps_ = 0;
  std::uint32_t failed_searches_ = 0;  // for the place of unexpected calls, in this step
  bool drop_at_mark_ = false;          // a request failed beside the arena
  std::vector<Arena> retired_;         // of dropped plans, with blocks in use

  // What is watched: the step before and this one.
  StepRecording before_;
  StepRecording now_;
  std::unordered_map<const std::byte*, Origin> origins_;
  bool is_first_step_ = true;
  bool is_installing_ = false;
  std::future<StepPlan> coming_;  // made by planner_
  std::jthread planner_;
  // An arena that found no room is asked for again after 1, 2, 4, … more steps.
  std::uint64_t next_try_ = 0;
  std::uint64_t failed_tries_ = 0;

  PlanningAllocatorStatistics statistics_;
};

}  // namespace sluice::allocator
