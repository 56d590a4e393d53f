// Three phases. (1) Without a plan every call goes to the CachingAllocator, and watched calls are
// appended to now_. begin_step() compares the last two steps; if they match, it plans them, usually
// on another thread. (2) install() requests the arena. It makes every other stream's work precede
// the arena's first use, then publishes the plan. (3) With a plan, allocate_planned() compares the
// call with the event at the cursor.
//
// The file has 630 lines because watching steps, matching calls and recovery share one cursor.
//
// Frees between two expected allocations may come in any order; pass_frees() moves the cursor past
// them and marks the buffers that are still live as overdue. If ranges pass between streams, a free
// in another order may make a different buffer the last user of a range. The plan's events do not
// cover that, so the step counts as diverged and every further allocation waits for all streams.
// begin_step() ends this with a wait of every stream for all others.
//
// A call in step costs O(1) plus its waits. An unexpected call costs O(events) after
// kUnexpectedCallsToMove in a row, at most kMaxFailedSearches times in a step.
#include "allocator/caching/planning_allocator.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "allocator/caching/oom_report.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice::allocator {
namespace {

// If this many consecutive unexpected calls occur in the same order further on in the plan, the
// step is taken to be there.
constexpr std::size_t kUnexpectedCallsToMove = 4;
// After this many failed searches the allocator stops searching until the next step, because each
// search reads the rest of the plan.
constexpr std::uint32_t kMaxFailedSearches = 16;

}  // namespace

PlanningAllocator::PlanningAllocator(device::Device& device, CachingAllocator& allocator,
                                     const PlanningAllocatorOptions& options)
    : device_(device), allocator_(allocator), recorder_(allocator.recorder()), options_(options) {}

PlanningAllocator::~PlanningAllocator() {
  if (coming_.valid()) coming_.wait();
  if (has_plan()) drop_plan();
  for (const Arena& arena : retired_) {
    for (const auto& [offset, allocation] : arena.allocations)
      record_arena_free(arena.data + offset, allocation);
    free_arena(arena);
  }
}

StreamId PlanningAllocator::add_stream(device::Stream& stream, bool movable) {
  const record::SpinLockHolder lock(mutex_);
  const StreamId id = allocator_.add_stream(stream, movable);
  if (streams_.size() <= id) {
    streams_.resize(id + 1);
    movable_.resize(id + 1);
  }
  streams_[id] = &stream;
  movable_[id] = movable;
  return id;
}

std::byte* PlanningAllocator::allocate(const AllocationRequest& request) {
  if (request.bytes == 0) return nullptr;
  const Call call{request.stream, round_up(request.bytes, BlockSpace::kAlignment)};
  bool is_fixed = false;
  {
    const record::SpinLockHolder lock(mutex_);
    is_fixed = call.stream < movable_.size() && !movable_[call.stream];
    if (has_plan() && !is_fixed) {
      if (std::byte* const data = allocate_planned(request, call)) {
        ++statistics_.planned_count;
        return data;
      }
      ++statistics_.fallback_count;
    }
  }
  std::byte* const data = allocate_unplanned(request);
  if (is_fixed) return data;
  const record::SpinLockHolder lock(mutex_);
  if (!has_plan()) record_allocation(data, call);
  return data;
}

// Allocates from the CachingAllocator. If that has no room, drops an idle arena and tries again.
std::byte* PlanningAllocator::allocate_unplanned(const AllocationRequest& request) {
  for (;;) {
    try {
      return allocator_.allocate(request);
    } catch (const OutOfMemoryReported& error) {
      const record::SpinLockHolder lock(mutex_);
      // An idle arena is dropped at once to make room. An arena in use is dropped at the next step.
      if (!has_plan() || arena_.live_count > 0) {
        drop_at_mark_ = has_plan();
        throw_with_arenas(error);
      }
      drop_plan();
    }
  }
}

// Adds the current arenas to the report, including changes by other threads since the failure.
void PlanningAllocator::throw_with_arenas(const OutOfMemoryReported& error) {
  const std::vector<ArenaBlocks> arenas = blocks_in_arenas();
  if (arenas.empty()) throw OutOfMemoryReported(error.report);
  OomReport report = *error.report;
  for (const ArenaBlocks& arena : arenas) add_arena(report, arena.bytes, arena.blocks);
  if (report.record != nullptr) {
    report.record = std::make_shared<const record::MemorySnapshot>(snapshot_locked());
  }
  throw OutOfMemoryReported(std::make_shared<const OomReport>(std::move(report)));
}

// Compares the call with the next expected allocation. Returns null if the CachingAllocator must
// answer: the call is unexpected, its buffer is not planned, or its range is still in use.
std::byte* PlanningAllocator::allocate_planned(const AllocationRequest& request, const Call& call) {
  std::size_t next = cursor_;
  while (next < plan_.events.size() && !plan_.events[next].is_alloc) ++next;
  if (next == plan_.events.size()) return nullptr;
  const StepPlan::Event& event = plan_.events[next];
  if (event.stream != call.stream || event.bytes != call.bytes) {
    find_place_again(call);
    return nullptr;
  }
  pass_frees();  // up to `next`; an unexpected call leaves them for later
  unexpected_calls_.clear();
  std::byte* data = nullptr;
  if (event.buffer != kNotPlanned) {
    if (places_[event.buffer].live ||
        (!overdue_.empty() && overlaps_overdue(plan_.buffers[event.buffer]))) {
      diverged_ = true;
    } else {
      data = allocate_buffer(event.buffer, request);
    }
  }
  ++cursor_;  // last, so that a call that throws may be repeated
  return data;
}

// Allocates a planned buffer after making its stream wait for the earlier users of its range.
std::byte* PlanningAllocator::allocate_buffer(std::uint32_t index,
                                              const AllocationRequest& request) {
  const StreamId stream = request.stream;
  const PlannedBuffer& buffer = plan_.buffers[index];
  Place& place = places_[index];
  const auto is_stale = [&](const PlannedBuffer::Wait& wait) {
    // Whether the buffer was not freed at its planned place, or was not allocated from the arena.
    const Place& released = places_[wait.buffer];
    const bool in_this_step = released.free_index < cursor_;
    return released.freed_step != statistics_.step_count - (in_this_step ? 0 : 1);
  };
  if (diverged_ || std::any_of(buffer.waits.begin(), buffer.waits.end(), is_stale)) [[unlikely]] {
    wait_for_all_others(stream);
  } else {
    for (const PlannedBuffer::Wait& wait : buffer.waits) {
      const std::vector<StreamId>& recorded = plan_.buffers[wait.buffer].release_streams;
      const auto at = std::find(recorded.begin(), recorded.end(), wait.stream) - recorded.begin();
      streams_[stream]->wait(*places_[wait.buffer].releases[static_cast<std::size_t>(at)]);
      ++statistics_.event_waits;
    }
  }
  place.live = true;
  holders_[place.offset_index] = index;
  ++arena_.live_count;
  ++step_planned_count_;
  statistics_.arena_live_bytes += buffer.bytes;
  place.allocation = {request.bytes, stream, request.name, request.category};
  std::byte* const data = arena_.data + buffer.offset;
  if (recorder_ != nullptr) [[unlikely]] {
    recorder_->record(record::MemoryAction::kAlloc, stream, reinterpret_cast<std::uint64_t>(data),
                      request.bytes, request.category, request.name);
  }
  return data;
}

// Moves the cursor to the next allocation. Buffers that the plan frees before it, but the caller
// has not freed, become overdue.
void PlanningAllocator::pass_frees() {
  while (cursor_ < plan_.events.size() && !plan_.events[cursor_].is_alloc) {
    const std::uint32_t buffer = plan_.events[cursor_++].buffer;
    Place& place = places_[buffer];
    if (!place.live || place.overdue) continue;
    overdue_.push_back(buffer);  // cannot throw: prepare() reserved the room
    place.overdue = true;
  }
}

bool PlanningAllocator::overlaps_overdue(const PlannedBuffer& buffer) const {
  return std::any_of(overdue_.begin(), overdue_.end(), [&](std::uint32_t index) {
    const PlannedBuffer& overdue = plan_.buffers[index];
    return overdue.offset < buffer.offset + buffer.bytes &&
           buffer.offset < overdue.offset + overdue.bytes;
  });
}

// Handles an unexpected call. Either it is new, and the next call may be the expected one; or the
// step has skipped a part of the plan. In the second case the last consecutive calls occur together
// further on, and the cursor moves after them.
void PlanningAllocator::find_place_again(const Call& call) {
  unexpected_calls_.push_back(call);
  if (unexpected_calls_.size() < kUnexpectedCallsToMove) return;
  if (++failed_searches_ > kMaxFailedSearches) {
    unexpected_calls_.clear();
    return;
  }
  std::size_t matched = 0;
  std::size_t first = 0;  // event of the first match
  for (std::size_t i = cursor_; i < plan_.events.size(); ++i) {
    const StepPlan::Event& event = plan_.events[i];
    if (!event.is_alloc) continue;
    const Call& wanted = unexpected_calls_[matched];
    if (event.stream == wanted.stream && event.bytes == wanted.bytes) {
      if (matched == 0) first = i;
      if (++matched < unexpected_calls_.size()) continue;
      while (cursor_ <= i) {
        pass_frees();
        ++cursor_;  // an allocation that was skipped or answered by the CachingAllocator
      }
      unexpected_calls_.clear();
      diverged_ = true;
      --failed_searches_;
      return;
    }
    if (matched > 0) i = first;  // a match may begin right after the first event
    matched = 0;
  }
  unexpected_calls_.erase(unexpected_calls_.begin());
}

// Makes the stream wait for all work queued on the other streams. It thus comes after
// every earlier free.
void PlanningAllocator::wait_for_all_others(StreamId stream) {
  for (std::size_t other = 0; other < streams_.size(); ++other) {
    if (other == stream || streams_[other] == nullptr) continue;
    const std::unique_ptr<device::Event> event = device_.create_event();
    streams_[other]->record(*event);
    streams_[stream]->wait(*event);
    ++statistics_.event_waits;
  }
}

void PlanningAllocator::free(std::byte* data) {
  if (data == nullptr) return;
  {
    const record::SpinLockHolder lock(mutex_);
    if (has_plan()) {
      // Skip planned frees of buffers that are not live.
      while (cursor_ < plan_.events.size() && !plan_.events[cursor_].is_alloc) {
        const std::uint32_t expected = plan_.events[cursor_].buffer;
        if (places_[expected].live) {
          if (data != arena_.data + plan_.buffers[expected].offset) break;
          free_planned(expected);
          ++cursor_;
          return;
        }
        ++cursor_;
      }
      if (arena_.holds(data)) {
        free_planned(holder_of(data));
        // The plan waits for the last user of a range on each stream; after this free another
        // buffer may be the last.
        if (has_waits_) diverged_ = true;
        return;
      }
    }
    for (Arena& arena : retired_) {
      if (!arena.holds(data)) continue;
      const auto offset = static_cast<std::uint64_t>(data - arena.data);
      const auto allocation = arena.allocations.find(offset);
      SLUICE_CHECK_MSG(allocation != arena.allocations.end(), "not a block in use");
      record_arena_free(data, allocation->second);
      arena.allocations.erase(allocation);
      if (--arena.live_count == 0) {
        free_arena(arena);
        retired_.erase(retired_.begin() + (&arena - retired_.data()));
      }
      return;
    }
    record_free(data);
  }
  allocator_.free(data);
}

// Frees a buffer of the arena: records the events that later buffers wait for, then
// updates the state.
void PlanningAllocator::free_planned(std::uint32_t index) {
  const PlannedBuffer& buffer = plan_.buffers[index];
  Place& place = places_[index];
  // Calls that may throw come first: then the block is not freed.
  if (!buffer.release_streams.empty()) {
    place.releases.resize(buffer.release_streams.size());
    for (std::size_t i = 0; i < buffer.release_streams.size(); ++i) {
      if (place.releases[i] == nullptr) place.releases[i] = device_.create_event();
      streams_[buffer.release_streams[i]]->record(*place.releases[i]);
    }
  }
  // If other streams used it than in the recording, the plan's waits do not suffice.
  if (!place.uses.empty()) [[unlikely]] {
    for (const StreamId use : place.uses) {
      const std::vector<StreamId>& planned = buffer.uses;
      if (std::find(planned.begin(), planned.end(), use) == planned.end()) diverged_ = true;
    }
    place.uses.clear();
  }
  record_arena_free(arena_.data + buffer.offset, place.allocation);
  place.live = false;
  place.freed_step = statistics_.step_count;
  --arena_.live_count;
  statistics_.arena_live_bytes -= buffer.bytes;
  if (place.overdue) [[unlikely]] {
    place.overdue = false;
    std::erase(overdue_, index);
  }
}

void PlanningAllocator::record_arena_free(const std::byte* data, const Allocation& allocation) {
  if (recorder_ == nullptr) [[likely]]
    return;
  recorder_->record_free(allocation.stream, reinterpret_cast<std::uint64_t>(data), allocation.bytes,
                         allocation.category, allocation.name);
}

// The live buffer that begins at `data`.
std::uint32_t PlanningAllocator::holder_of(const std::byte* data) const {
  const auto offset = static_cast<std::uint64_t>(data - arena_.data);
  const auto found = std::lower_bound(offsets_.begin(), offsets_.end(), offset);
  SLUICE_CHECK_MSG(found != offsets_.end() && *found == offset, "not the start of a block");
  const std::uint32_t holder = holders_[static_cast<std::size_t>(found - offsets_.begin())];
  SLUICE_CHECK_MSG(holder != kNotPlanned && places_[holder].live, "freed twice");
  return holder;
}

void PlanningAllocator::record_use(std::byte* data, StreamId stream) {
  {
    const record::SpinLockHolder lock(mutex_);
    if (has_plan() && arena_.holds(data)) {
      const std::uint32_t buffer = holder_of(data);
      if (plan_.buffers[buffer].stream == stream) return;
      std::vector<StreamId>& uses = places_[buffer].uses;
      if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
      return;
    }
    // A dropped plan's arena is freed after the work of all streams anyway.
    if (std::any_of(retired_.begin(), retired_.end(),
                    [&](const Arena& arena) { return arena.holds(data); })) {
      return;
    }
    const auto origin = origins_.find(data);
    if (origin != origins_.end()) {
      std::vector<StreamId>& uses = origin->second.uses;
      if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
    }
  }
  allocator_.record_use(data, stream);
}

// Appends a watched allocation to the recording of this step.
void PlanningAllocator::record_allocation(const std::byte* data, const Call& call) {
  StepEvent event;
  event.stream = call.stream;
  event.bytes = call.bytes;
  event.number = now_.allocation_count++;
  origins_[data] = {statistics_.step_count, event.number, {}};
  now_.events.push_back(std::move(event));
}

// Appends the free of a watched allocation of this step or the one before.
void PlanningAllocator::record_free(const std::byte* data) {
  const auto found = origins_.find(data);
  if (found == origins_.end()) return;  // allocated before the watched steps
  Origin origin = std::move(found->second);
  origins_.erase(found);
  const std::uint64_t steps_ago = statistics_.step_count - origin.step;
  if (has_plan() || steps_ago > 1) return;
  StepEvent event;
  event.kind = StepEvent::Kind::kFree;
  event.number = origin.number;
  event.steps_ago = static_cast<std::uint32_t>(steps_ago);
  std::sort(origin.uses.begin(), origin.uses.end());
  event.uses = std::move(origin.uses);
  now_.events.push_back(std::move(event));
}

void PlanningAllocator::begin_step() {
  std::function<StepPlan()> plan;
  bool releases_cached = false;
  {
    const record::SpinLockHolder lock(mutex_);
    if (has_plan()) {
      end_planned_step();
      // The plan has served a whole step: memory of the earlier steps can be released.
      releases_cached = has_plan() && ++statistics_.planned_step_count == 1;
    } else if (!is_installing_) {
      plan = end_watched_step();
      is_installing_ = plan != nullptr;
    }
    ++statistics_.step_count;
  }
  allocator_.begin_step();
  if (releases_cached) allocator_.release_cached();
  if (plan == nullptr) return;
  try {
    install(plan());
  } catch (...) {
    const record::SpinLockHolder lock(mutex_);
    is_installing_ = false;
    throw;
  }
  const record::SpinLockHolder lock(mutex_);
  is_installing_ = false;
}

// Passes the rest of the plan's events. A planned allocation that did not come makes the step
// diverge. Two consecutive steps with few planned answers drop the plan.
void PlanningAllocator::end_planned_step() {
  while (cursor_ < plan_.events.size()) {
    pass_frees();
    if (cursor_ == plan_.events.size()) break;
    if (plan_.events[cursor_++].buffer != kNotPlanned) diverged_ = true;
  }
  cursor_ = 0;
  unexpected_calls_.clear();
  if (std::exchange(diverged_, false)) {
    ++statistics_.diverged_steps;
    // After these waits the plan's own waits suffice again.
    for (StreamId stream = 0; stream < streams_.size(); ++stream) {
      if (streams_[stream] != nullptr) wait_for_all_others(stream);
    }
  }
  const bool good = static_cast<double>(step_planned_count_) >=
                    options_.least_match * static_cast<double>(plan_allocation_count_);
  bad_steps_ = good ? 0 : bad_steps_ + 1;
  step_planned_count_ = 0;
  failed_searches_ = 0;
  if (bad_steps_ == 2 || std::exchange(drop_at_mark_, false)) drop_plan();
}

// Ends a watched step. If it matches the step before, planning starts on another thread; a later
// call returns the function that takes the finished plan.
std::function<StepPlan()> PlanningAllocator::end_watched_step() {
  const StepRecording before = std::exchange(before_, std::exchange(now_, {}));
  const bool compares = !std::exchange(is_first_step_, statistics_.step_count == 0);
  if (coming_.valid()) {
    if (coming_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
    return [this] { return coming_.get(); };
  }
  // Calls before the first begin_step() are not a step.
  if (!compares || before_.allocation_count == 0 || statistics_.step_count < next_try_ ||
      matching_share(before, before_) < options_.least_match) {
    return nullptr;
  }
  const auto make = [plan = options_.plan, before, step = before_] { return plan(before, step); };
  if (!options_.in_background) return make;
  std::packaged_task<StepPlan()> task(make);
  std::future<StepPlan> coming = task.get_future();
  try {
    planner_ = start_thread("step plan", std::move(task));
  } catch (const ThreadError&) {
    return make;  // the caller plans, and waits for it
  }
  coming_ = std::move(coming);
  return nullptr;
}

// Requests the arena and puts the plan to use. All streams wait for each other once, so that
// earlier work on the arena's pages precedes its first use. Without room it tries again
// after more steps.
void PlanningAllocator::install(StepPlan plan) {
  StreamId first = 0;
  {
    const record::SpinLockHolder lock(mutex_);
    while (first < movable_.size() && !movable_[first]) ++first;
    if (plan.arena_bytes == 0 || first == movable_.size()) return;
  }
  Arena arena{allocator_.try_allocate({plan.arena_bytes, first, Category::kActivation, 0, true}),
              plan.arena_bytes,
              0,
              {}};
  const record::SpinLockHolder lock(mutex_);
  if (arena.data == nullptr) {
    if (failed_tries_ == 0) {
      log(LogLevel::kInfo, "no room for an arena of " + format_bytes(plan.arena_bytes) +
                               " in addition to what is held between steps");
    }
    next_try_ =
        statistics_.step_count + (std::uint64_t{1} << std::min<std::uint64_t>(failed_tries_, 10));
    ++failed_tries_;
    return;
  }
  try {
    prepare(plan);
    for (StreamId stream = 0; stream < streams_.size(); ++stream) {
      if (stream != first && streams_[stream] != nullptr) wait_for_all_others(stream);
    }
  } catch (...) {
    free_arena(arena);
    throw;
  }
  plan_ = std::move(plan);
  arena_ = std::move(arena);
  ++statistics_.plan_count;
  statistics_.arena_bytes = arena_.bytes;
  statistics_.arena_live_bytes = 0;
}

// Sets up the state of a plan that is about to be used.
void PlanningAllocator::prepare(const StepPlan& plan) {
  offsets_.clear();
  for (const PlannedBuffer& buffer : plan.buffers) offsets_.push_back(buffer.offset);
  std::sort(offsets_.begin(), offsets_.end());
  offsets_.erase(std::unique(offsets_.begin(), offsets_.end()), offsets_.end());
  holders_.assign(offsets_.size(), kNotPlanned);
  places_.assign(plan.buffers.size(), {});
  overdue_.clear();
  overdue_.reserve(plan.buffers.size());
  for (std::size_t b = 0; b < places_.size(); ++b) {
    const auto found = std::lower_bound(offsets_.begin(), offsets_.end(), plan.buffers[b].offset);
    places_[b].offset_index = static_cast<std::uint32_t>(found - offsets_.begin());
  }
  for (std::size_t i = 0; i < plan.events.size(); ++i) {
    if (!plan.events[i].is_alloc) places_[plan.events[i].buffer].free_index = i;
  }
  has_waits_ = std::any_of(plan.buffers.begin(), plan.buffers.end(),
                           [](const PlannedBuffer& buffer) { return !buffer.waits.empty(); });
  plan_allocation_count_ = plan.buffers.size();
  cursor_ = 0;
  bad_steps_ = 0;
  failed_tries_ = 0;
  failed_searches_ = 0;
  step_planned_count_ = 0;
  statistics_.planned_step_count = 0;
  diverged_ = false;
  drop_at_mark_ = false;
  before_ = now_ = {};
}

// Ends the plan. An arena with live blocks is retired: each of them is then freed by its offset.
void PlanningAllocator::drop_plan() {
  if (arena_.live_count == 0) {
    free_arena(arena_);
  } else {
    for (std::size_t b = 0; b < places_.size(); ++b) {
      if (places_[b].live) arena_.allocations[plan_.buffers[b].offset] = places_[b].allocation;
    }
    retired_.push_back(std::move(arena_));
  }
  arena_ = {};
  plan_ = {};
  overdue_.clear();
  places_.clear();
  origins_.clear();
  before_ = now_ = {};
  is_first_step_ = true;
  statistics_.arena_bytes = statistics_.arena_live_bytes = 0;
  statistics_.planned_step_count = 0;
}

// Frees the arena's block after the work of all streams.
void PlanningAllocator::free_arena(const Arena& arena) {
  for (StreamId stream = 0; stream < streams_.size(); ++stream) {
    if (streams_[stream] != nullptr) allocator_.record_use(arena.data, stream);
  }
  allocator_.free(arena.data);
}

std::vector<PlanningAllocator::ArenaBlocks> PlanningAllocator::blocks_in_arenas() const {
  std::vector<ArenaBlocks> result;
  const auto add_to = [](ArenaBlocks& arena, std::uint64_t offset, const Allocation& allocation) {
    arena.blocks.push_back({arena.address + offset,
                            round_up(allocation.bytes, BlockSpace::kAlignment), allocation.bytes,
                            record::BlockState::kAllocated, allocation.category, allocation.name});
  };
  const auto new_arena = [&](const Arena& arena) -> ArenaBlocks& {
    return result.emplace_back(
        ArenaBlocks{reinterpret_cast<std::uint64_t>(arena.data), arena.bytes, {}});
  };
  for (const Arena& arena : retired_) {
    ArenaBlocks& blocks = new_arena(arena);
    for (const auto& [offset, allocation] : arena.allocations) add_to(blocks, offset, allocation);
  }
  if (!has_plan()) return result;
  ArenaBlocks& current = new_arena(arena_);
  for (std::size_t b = 0; b < places_.size(); ++b) {
    if (places_[b].live) add_to(current, plan_.buffers[b].offset, places_[b].allocation);
  }
  std::sort(current.blocks.begin(), current.blocks.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  return result;
}

PlanningAllocatorStatistics PlanningAllocator::statistics() {
  const record::SpinLockHolder lock(mutex_);
  PlanningAllocatorStatistics result = statistics_;
  const auto add = [&](const Allocation& allocation) {
    result.arena_live_by_category[static_cast<std::size_t>(allocation.category)] +=
        allocation.bytes;
    ++result.arena_live_count;
  };
  const auto hold = [&](const Arena& arena) {
    ++result.held_arenas;
    result.held_arena_bytes += arena.bytes;
  };
  if (has_plan()) hold(arena_);
  for (const Place& place : places_) {
    if (place.live) add(place.allocation);
  }
  for (const Arena& arena : retired_) {
    hold(arena);
    for (const auto& [offset, allocation] : arena.allocations) add(allocation);
  }
  return result;
}

record::MemorySnapshot PlanningAllocator::snapshot() {
  const record::SpinLockHolder lock(mutex_);
  return snapshot_locked();
}

// Replaces each unrecorded block of the CachingAllocator's snapshot, which is an arena, by the
// blocks inside it and the free ranges between them.
record::MemorySnapshot PlanningAllocator::snapshot_locked() {
  record::MemorySnapshot snapshot = allocator_.snapshot();
  const std::vector<ArenaBlocks> arenas = blocks_in_arenas();
  for (record::SnapshotSegment& segment : snapshot.segments) {
    std::vector<record::SnapshotBlock> blocks;
    for (const record::SnapshotBlock& block : segment.blocks) {
      if (!block.unrecorded) {
        blocks.push_back(block);
        continue;
      }
      const auto arena = std::find_if(arenas.begin(), arenas.end(), [&](const ArenaBlocks& one) {
        return one.address == block.address;
      });
      std::uint64_t address = block.address;
      const auto leave_free = [&](std::uint64_t end) {
        if (end > address) blocks.push_back({.address = address, .bytes = end - address});
      };
      if (arena != arenas.end()) {  // otherwise the arena is not in use yet, or no longer
        for (const record::SnapshotBlock& allocation : arena->blocks) {
          leave_free(allocation.address);
          blocks.push_back(allocation);
          address = allocation.address + allocation.bytes;
        }
      }
      leave_free(block.address + block.bytes);
    }
    segment.blocks = std::move(blocks);
  }
  return snapshot;
}

}  // namespace sluice::allocator
