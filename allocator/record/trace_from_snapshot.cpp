// Follows a record forward and writes the operations of a trace.
//
// The follower starts from the rolled-back state. lives_ maps the address of each live or pending
// block to its allocation. segments_ tracks the held segments, for the recorded peaks and to see
// whether freed segments are a flush of the whole cache. Events that contradict the state are
// counted and applied as far as possible, so that the trace is sound whatever the record holds.
#include "allocator/record/trace_from_snapshot.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "allocator/record/snapshot_rollback.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::record {
namespace {

// Walks the events forward and writes operations.
class Follower {
 public:
  Follower(const MemorySnapshot& snapshot, MemoryTrace& trace)
      : snapshot_(snapshot), trace_(trace), shape_(shape_of(snapshot)) {}

  TraceDefects run() {
    RolledState state = roll_back(snapshot_);
    trace_.operations.reserve(snapshot_.events.size());
    trace_.initial_segments = segments_of(state, snapshot_);
    defects_.contradictions = state.contradictions;
    segments_ = std::move(state.segments);
    later_segments_ = std::move(state.later_segments);
    number_initial(state);
    check_held_bytes(0);
    trace_.recorded_peak_reserved_bytes = segments_.reserved_bytes();
    for (std::size_t i = 0; i < snapshot_.events.size(); ++i) {
      follow(i);
      check_held_bytes(i + 1);
    }
    trace_.recorded_end_reserved_bytes = segments_.reserved_bytes();
    check_end();
    return defects_;
  }

 private:
  // An allocation that has not ended.
  struct Life {
    std::uint32_t id = 0;
    bool is_pending = false;
  };

  std::uint32_t add_allocation(TraceAllocation allocation) {
    if (trace_.allocations.size() >= UINT32_MAX - 1) {
      throw InputError("'" + trace_.source + "' has more than 2^32 - 2 allocations");
    }
    if (allocation.name >= trace_.names.size()) allocation.name = 0;
    trace_.allocations.push_back(allocation);
    return static_cast<std::uint32_t>(trace_.allocations.size() - 1);
  }

  // Gives an index to each block that is held before the first event.
  void number_initial(const RolledState& state) {
    for (SnapshotSegment& segment : trace_.initial_segments) {
      auto& ids = trace_.initial_ids.emplace_back();
      for (SnapshotBlock& block : segment.blocks) {
        if (block.name >= trace_.names.size()) block.name = 0;
        if (block.state == BlockState::kFree) {
          ids.push_back(UINT32_MAX);
          continue;
        }
        const RolledBlock& rolled = state.blocks.at(block.address);
        ids.push_back(add_allocation({.bytes = block.requested_bytes,
                                      .stream = rolled.stream,
                                      .pool = segment.pool,
                                      .address = block.address,
                                      .category = block.category,
                                      .name = block.name}));
        lives_[block.address] = {ids.back(), block.state == BlockState::kPendingFree};
        held_bytes_ += block.requested_bytes;
        segments_.begin_allocation(block.address);
      }
    }
  }

  // The record is followed up to this many events.
  void check_held_bytes(std::size_t event_count) const {
    if (held_bytes_ <= kMostHeldBytes) return;
    const std::string place =
        event_count == 0 ? "before its first event" : "event " + std::to_string(event_count);
    throw InputError("'" + trace_.source + "' " + place + ": holds more than " +
                     format_bytes(kMostHeldBytes) +
                     " at once: must be less, because no address space is larger");
  }

  void emit(TraceAction action, std::uint32_t id = 0) { trace_.operations.push_back({action, id}); }

  // Ends an allocation, and with it its life at this address.
  void end(std::map<std::uint64_t, Life>::iterator life) {
    emit(life->second.is_pending ? TraceAction::kFreeCompleted : TraceAction::kFree,
         life->second.id);
    held_bytes_ -= trace_.allocations[life->second.id].bytes;
    segments_.end_allocation(life->first);
    lives_.erase(life);
  }

  // Dispatches one event. Events at impossible addresses are contradictions.
  void follow(std::size_t index) {
    const MemoryEvent& event = snapshot_.events[index];
    switch (event.action) {
      case MemoryAction::kStep:
        emit(TraceAction::kStep);
        return;
      case MemoryAction::kFlush:
        emit(event.pool == 0 ? TraceAction::kFlush : TraceAction::kReleasePool, event.pool);
        return;
      case MemoryAction::kOutOfMemory:
        follow_refused(event);
        return;
      case MemoryAction::kSnapshot:
        return;
      default:
        break;
    }
    if (!is_followed(event.address, event.bytes)) {
      ++defects_.contradictions;
      return;
    }
    switch (event.action) {
      case MemoryAction::kAlloc:
        follow_alloc(index);
        break;
      case MemoryAction::kFreeRequested:
        follow_free_requested(index);
        break;
      case MemoryAction::kFreeCompleted:
        follow_free_completed(index);
        break;
      default:
        follow_segment(index);
        break;
    }
  }

  // The request keeps its place in the order, so that a replay serves it there or fails.
  void follow_refused(const MemoryEvent& event) {
    if (event.bytes >= std::uint64_t{1} << 62) {  // a sum with all held bytes stays below 2^64
      ++defects_.contradictions;
      return;
    }
    const std::uint32_t id = add_allocation({.bytes = event.bytes,
                                             .stream = event.stream,
                                             .pool = event.pool,
                                             .category = event.category,
                                             .name = event.name});
    emit(TraceAction::kRefused, id);
    trace_.refused.push_back({id, segments_.reserved_bytes(), event.address});
  }

  // An allocation over a live one ends that first, and counts as a contradiction.
  void follow_alloc(std::size_t index) {
    const MemoryEvent& event = snapshot_.events[index];
    if (const auto life = lives_.find(event.address); life != lives_.end()) {
      ++defects_.contradictions;
      end(life);
    }
    TraceAllocation allocation{.bytes = event.bytes,
                               .stream = event.stream,
                               .pool = event.pool,
                               .address = event.address,
                               .category = event.category,
                               .name = event.name};
    if (const SegmentMap::Entry* const segment = segments_.find(event.address)) {
      if (event.pool == 0) allocation.pool = segment->second.pool;
      // A segment that was obtained right before the allocation was obtained for it.
      const MemoryEvent* const before = index > 0 ? &snapshot_.events[index - 1] : nullptr;
      if (before != nullptr && before->action == MemoryAction::kSegmentAlloc &&
          before->address == segment->first) {
        allocation.segment_address = segment->first;
      }
    }
    const std::uint32_t id = add_allocation(allocation);
    lives_[event.address] = {id, false};
    held_bytes_ += event.bytes;
    segments_.begin_allocation(event.address);
    emit(TraceAction::kAlloc, id);
  }

  // Becomes kFree if the completion is the next event or is never recorded, else kFreePending.
  void follow_free_requested(std::size_t index) {
    const MemoryEvent& event = snapshot_.events[index];
    const auto life = lives_.find(event.address);
    if (life == lives_.end()) {
      ++defects_.unknown_frees;
      return;
    }
    if (life->second.is_pending) {
      ++defects_.contradictions;
      return;
    }
    const MemoryEvent* const next =
        index + 1 < snapshot_.events.size() ? &snapshot_.events[index + 1] : nullptr;
    const bool completes = next != nullptr && next->action == MemoryAction::kFreeCompleted &&
                           next->address == event.address &&
                           is_followed(next->address, next->bytes);
    if (completes || shape_.skips_free_completed) {
      end(life);
      if (completes) completed_with_ = index + 1;
      return;
    }
    emit(TraceAction::kFreePending, life->second.id);
    life->second.is_pending = true;
  }

  // Ends a pending free. The completion that a kFree has taken in is skipped.
  void follow_free_completed(std::size_t index) {
    if (index == completed_with_) return;
    const MemoryEvent& event = snapshot_.events[index];
    const auto life = lives_.find(event.address);
    if (life == lives_.end()) {
      ++defects_.unknown_frees;
      return;
    }
    if (!life->second.is_pending && !shape_.skips_free_requested) ++defects_.contradictions;
    end(life);
  }

  // Segments come and go. Pool and size class of one that the record creates come from the
  // rollback.
  void follow_segment(std::size_t index) {
    const MemoryEvent& event = snapshot_.events[index];
    HeldSegment segment{.bytes = event.bytes, .stream = event.stream};
    if (!later_segments_.empty() && later_segments_.back().event == index) {
      segment = later_segments_.back().segment;
      segment.live_count = 0;
      segment.bytes = event.bytes;
      later_segments_.pop_back();
    }
    if (segment.pool == 0) segment.pool = event.pool;
    bool is_exact = true;
    switch (event.action) {
      case MemoryAction::kSegmentAlloc:
        is_exact = segments_.add(event.address, segment);
        break;
      case MemoryAction::kSegmentMap:
        is_exact = segments_.map(event.address, segment);
        break;
      case MemoryAction::kSegmentFree:
        follow_release(index, segments_.remove(event.address, event.bytes, is_exact));
        break;
      default:
        const std::optional<HeldSegment> gone = segments_.unmap(event.address, event.bytes);
        is_exact = gone.has_value();
        follow_release(index, gone);
        break;
    }
    if (!is_exact) ++defects_.contradictions;
    trace_.recorded_peak_reserved_bytes =
        std::max(trace_.recorded_peak_reserved_bytes, segments_.reserved_bytes());
  }

  static bool is_release(const MemoryEvent& event) {
    return event.action == MemoryAction::kSegmentFree ||
           event.action == MemoryAction::kSegmentUnmap;
  }

  // Handles one of several consecutive frees of segments. The last one decides. Memory of a private
  // pool goes when its graph has ended, whatever stays in the default pool.
  void follow_release(std::size_t index, const std::optional<HeldSegment>& gone) {
    const MemoryEvent& event = snapshot_.events[index];
    if (gone && gone->pool != 0 && gone->pool <= UINT32_MAX) {
      released_pools_.insert(static_cast<std::uint32_t>(gone->pool));
    } else {
      released_bytes_ += event.bytes;
    }
    if (index + 1 < snapshot_.events.size()) {
      const MemoryEvent& next = snapshot_.events[index + 1];
      if (is_release(next) && is_followed(next.address, next.bytes)) return;
    }
    // With a limit to splitting, single segments are freed when memory is short. A flush leaves no
    // idle memory.
    const bool may_be_single = snapshot_.max_split_bytes != UINT64_MAX;
    for (const std::uint32_t pool : std::exchange(released_pools_, {})) {
      emit(TraceAction::kReleasePool, pool);
    }
    if (released_bytes_ == 0) return;
    if (segments_.idle_bytes() <= (may_be_single ? 0 : released_bytes_)) {
      emit(TraceAction::kFlush);
    } else {
      trace_.recorded_trimming = true;
    }
    released_bytes_ = 0;
  }

  // Compares the reserved bytes at the end with those of the snapshot, which are the truth. No
  // allocator holds more live bytes than it has reserved.
  void check_end() {
    if (!shape_.has_segments || snapshot_.segments.empty()) return;
    std::uint64_t end_bytes = 0;
    for (const SnapshotSegment& segment : snapshot_.segments) end_bytes += segment.bytes;
    if (trace_.recorded_end_reserved_bytes != end_bytes) ++defects_.contradictions;
    trace_.recorded_end_reserved_bytes = end_bytes;
    trace_.recorded_peak_reserved_bytes = std::max(trace_.recorded_peak_reserved_bytes, end_bytes);
    if (peak_live_bytes(trace_) > trace_.recorded_peak_reserved_bytes) ++defects_.contradictions;
  }

  const MemorySnapshot& snapshot_;
  MemoryTrace& trace_;
  RecordShape shape_;
  TraceDefects defects_;
  SegmentMap segments_;
  std::vector<RolledSegment> later_segments_;
  std::map<std::uint64_t, Life> lives_;    // by address
  std::uint64_t held_bytes_ = 0;           // the requested bytes of lives_
  std::size_t completed_with_ = SIZE_MAX;  // index of a free_completed that became part of a kFree
  // By the consecutive frees of segments so far.
  std::uint64_t released_bytes_ = 0;
  std::set<std::uint32_t> released_pools_;
};

}  // namespace

MemoryTrace trace_of(const MemorySnapshot& snapshot, std::string source, std::string format,
                     TraceDefects* defects) {
  MemoryTrace trace;
  trace.source = std::move(source);
  trace.format = std::move(format);
  if (!snapshot.names.empty()) trace.names = snapshot.names;
  trace.expandable_segments = snapshot.expandable_segments;
  trace.max_split_bytes = snapshot.max_split_bytes;
  trace.roundup_power2_divisions = snapshot.roundup_power2_divisions;
  trace.roundup_divisions_by_power = snapshot.roundup_divisions_by_power;
  trace.host_segment_count = snapshot.host_segment_count;
  trace.host_bytes = snapshot.host_bytes;
  const TraceDefects found = Follower(snapshot, trace).run();
  if (defects != nullptr) *defects = found;
  return trace;
}

}  // namespace sluice::record
