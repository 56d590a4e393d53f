// An allocator for callers that repeat the same calls in every step. It watches steps, plans one
// (step_plan.hpp), and from then on answers from an arena by comparing calls with the plan.
//
// Thread-safe, with one lock. The caller determines the order of calls: threads that interleave
// differently in each step get no plan.
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
  // Makes a plan from two consecutive steps. It must be pure; with in_background another thread
  // calls it.
  std::function<StepPlan(const StepRecording& before, const StepRecording& step)> plan =
      [](const StepRecording& before, const StepRecording& step) {
        return plan_step(before, step, packing::PackingEffort::kThorough);
      };
  // A share of a step's allocations. A plan is made if two consecutive steps match by this share.
  // It is dropped if it answers a smaller share in two consecutive steps.
  double least_match = 0.9;
  bool in_background = true;  // plan on another thread, else within begin_step()
};

struct PlanningAllocatorStatistics {
  std::uint64_t planned_count = 0;   // allocations answered from the arena
  std::uint64_t fallback_count = 0;  // answered by the CachingAllocator although there was a plan
  std::uint64_t arena_bytes = 0;     // 0: no plan
  std::uint64_t arena_live_bytes = 0;
  // Blocks of the CachingAllocator that are arenas, those of dropped plans among them, and the
  // allocations that live there.
  std::uint64_t held_arenas = 0;
  std::uint64_t held_arena_bytes = 0;
  std::uint64_t arena_live_count = 0;
  // Requested bytes in the arena and in the arenas of dropped plans.
  std::array<std::uint64_t, kCategoryCount> arena_live_by_category{};
  std::uint64_t plan_count = 0;
  std::uint64_t event_waits = 0;
  std::uint64_t diverged_steps = 0;
  std::uint64_t step_count = 0;          // begin_step() calls
  std::uint64_t planned_step_count = 0;  // steps that the current plan has served
};

// The cursor is the position in the plan's list of expected calls. An allocation that matches the
// next expected one (stream and rounded size) takes the planned range: no search and no check,
// because the packing along the recorded order proves that the range is free. Every other call goes
// to the CachingAllocator: calls while steps are watched, unexpected calls, and all calls of
// streams that are not movable. After kUnexpectedCallsToMove unexpected calls in a row the
// allocator looks for the same sequence further on in the plan and moves the cursor there.
//
// The arena is one block of the CachingAllocator, stitched from free pages between two steps. After
// the first step of a plan the host waits for the streams once, so that memory of the earlier steps
// can be released. A request that finds no room next to an idle arena drops the plan.
//
// Invariants:
//   1. A planned buffer is live only if no live buffer overlaps it: in step by the plan; otherwise
//      because allocations on the range of an overdue buffer (freed later than planned) fall back.
//   2. If a range passes from one stream to another, the second stream first waits for the events
//      in PlannedBuffer::waits. If calls were skipped or reordered (diverged_), or such an event is
//      stale, it waits for all other streams instead. The next begin_step() resets diverged_.
//   3. Every buffer before the cursor that is live and past its planned free is in overdue_.
//   4. holders_[i] is the last buffer that was allocated at offsets_[i].
//   5. The arena of a dropped plan is kept in retired_ until its last block is freed; it is then
//      freed after the work of all streams.
//   6. The recorder gets the allocations in the arena, not the arena itself. It gets no pending
//      state for them: the next user in the plan's order waits for the other streams.
//   7. A call that throws has neither allocated nor freed, and may be repeated.
class PlanningAllocator {
 public:
  // While this object lives, streams may be added only through it. `allocator` must outlive it.
  PlanningAllocator(device::Device& device, CachingAllocator& allocator,
                    const PlanningAllocatorOptions& options = {});
  // No block of the arena may still be in use; it need not have been freed.
  ~PlanningAllocator();
  PlanningAllocator(const PlanningAllocator&) = delete;
  PlanningAllocator& operator=(const PlanningAllocator&) = delete;

  // These calls have the contracts of CachingAllocator's.
  StreamId add_stream(device::Stream& stream, bool movable = true);
  std::byte* allocate(const AllocationRequest& request);
  void free(std::byte* data);
  void record_use(std::byte* data, StreamId stream);

  // Call at the beginning of each step. It ends the step before: compares it, plans it, or installs
  // a finished plan. Long work (planning, stitching the arena) is done without the lock.
  void begin_step();
  PlanningAllocatorStatistics statistics();
  // CachingAllocator's snapshot with the blocks inside the arenas. Calls of other threads wait
  // meanwhile.
  record::MemorySnapshot snapshot();

 private:
  // The request of a block in an arena.
  struct Allocation {
    std::uint64_t bytes = 0;
    StreamId stream = 0;
    std::uint32_t name = 0;
    Category category = Category::kExternal;
  };
  // The state of a planned buffer.
  struct Place {
    bool live = false;
    bool overdue = false;  // live, but the plan has it free by now
    // The step in which it was last freed, and the index of its free in the plan's events.
    std::uint64_t freed_step = UINT64_MAX;
    std::size_t free_index = 0;
    std::uint32_t offset_index = 0;                        // in offsets_
    Allocation allocation;                                 // valid while live
    std::vector<StreamId> uses;                            // other streams, since its allocation
    std::vector<std::shared_ptr<device::Event>> releases;  // by PlannedBuffer::release_streams
  };
  struct Arena {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t live_count = 0;
    std::map<std::uint64_t, Allocation> allocations;  // by offset; only for a dropped plan
    bool holds(const std::byte* address) const { return address >= data && address < data + bytes; }
  };
  struct Call {
    StreamId stream = 0;
    std::uint64_t bytes = 0;
  };
  // A watched allocation.
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
  std::byte* allocate_buffer(std::uint32_t buffer, const AllocationRequest& request);
  void pass_frees();
  bool overlaps_overdue(const PlannedBuffer& buffer) const;
  void find_place_again(const Call& call);
  void wait_for_all_others(StreamId stream);
  void free_planned(std::uint32_t buffer);
  std::uint32_t holder_of(const std::byte* data) const;
  void end_planned_step();
  // Returns a function that makes the plan or waits for the planning thread; call it without the
  // lock. Returns an empty function if no plan is due.
  std::function<StepPlan()> end_watched_step();
  void drop_plan();
  void free_arena(const Arena& arena);
  void record_arena_free(const std::byte* data, const Allocation& allocation);
  struct ArenaBlocks {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::vector<record::SnapshotBlock> blocks;  // the live blocks, by address
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
  std::vector<bool> movable_;  // by stream; blocks of other streams are never planned

  // The plan, and the position of the step in it.
  StepPlan plan_;
  Arena arena_;
  std::vector<Place> places_;           // by buffer
  std::vector<std::uint64_t> offsets_;  // the distinct offsets of buffers, ascending
  std::vector<std::uint32_t> holders_;  // by offset_index: the buffer last allocated there
  std::size_t cursor_ = 0;              // index of the next expected event
  std::vector<std::uint32_t> overdue_;
  std::vector<Call> unexpected_calls_;  // the last consecutive unexpected calls
  bool has_waits_ = false;              // ranges of the plan pass between streams
  // A planned call was skipped in this step, or frees came in another order: the plan's waits may
  // not suffice.
  bool diverged_ = false;
  std::uint64_t step_planned_count_ = 0;
  std::uint64_t plan_allocation_count_ = 0;
  std::uint32_t bad_steps_ = 0;
  std::uint32_t failed_searches_ = 0;  // searches for unexpected calls in this step
  bool drop_at_mark_ = false;          // a request failed next to the arena
  std::vector<Arena> retired_;         // arenas of dropped plans with blocks in use

  // The watched steps: the step before and this one.
  StepRecording before_;
  StepRecording now_;
  std::unordered_map<const std::byte*, Origin> origins_;
  bool is_first_step_ = true;
  bool is_installing_ = false;
  std::future<StepPlan> coming_;  // made by planner_
  std::jthread planner_;
  // If there is no room for an arena, it is requested again after 1, 2, 4, … more steps.
  std::uint64_t next_try_ = 0;
  std::uint64_t failed_tries_ = 0;

  PlanningAllocatorStatistics statistics_;
};

}  // namespace sluice::allocator
