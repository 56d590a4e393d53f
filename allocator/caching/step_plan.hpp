// A plan for a caller that makes the same allocations and frees in every step: offsets in one
// arena, computed from a recorded step.
//
// A step is a circle of events: a buffer may be freed in the next step, after the same point of the
// circle. The plan assumes that later steps make the same calls in the same order.
//
// Invariants of a plan:
//   1. Buffers that are live at the same event have disjoint ranges of the arena.
//   2. `events` lists the planned calls in the order of the recording. A free appears only if its
//      buffer is planned.
//   3. If a buffer's range was used before on another stream, `waits` names the last buffer there
//      for each such stream, and that buffer's release_streams contains the stream. The buffer's
//      own stream needs no wait: stream order suffices.
//   4. A buffer that lives a whole step or longer is not planned (kNotPlanned).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/caching/stream_pool.hpp"
#include "allocator/packing/arena_packing.hpp"

namespace sluice::allocator {

// One call within a step. A free identifies its allocation by the allocation's number within the
// step that made it.
struct StepEvent {
  enum class Kind : std::uint8_t { kAlloc, kFree };
  Kind kind = Kind::kAlloc;
  StreamId stream = 0;          // of an allocation
  std::uint32_t number = 0;     // kAlloc: its own number; kFree: the number of its allocation
  std::uint32_t steps_ago = 0;  // kFree: 0: allocated in this step, 1: in the step before
  std::uint64_t bytes = 0;      // of an allocation, a multiple of BlockSpace::kAlignment
  std::vector<StreamId> uses;   // kFree: the other streams that had used it

  friend bool operator==(const StepEvent&, const StepEvent&) = default;
};

// The calls of a step, in order, without frees of allocations older than the step before.
struct StepRecording {
  std::vector<StepEvent> events;
  std::uint32_t allocation_count = 0;

  friend bool operator==(const StepRecording&, const StepRecording&) = default;
};

// The number of allocations that both steps have, by stream and size in any order, divided by the
// larger step's number of allocations.
double matching_share(const StepRecording& a, const StepRecording& b);

constexpr std::uint32_t kNotPlanned = UINT32_MAX;

struct PlannedBuffer {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  StreamId stream = 0;
  std::vector<StreamId> uses;  // other streams that used it in the recording
  // The streams on which an event is recorded when the buffer is freed: those that another buffer
  // waits for.
  std::vector<StreamId> release_streams;
  // Before the buffer is used, its stream waits for the events of these freed buffers: the last
  // users of its range on each other stream.
  struct Wait {
    std::uint32_t buffer;
    StreamId stream;
  };
  std::vector<Wait> waits;
};

// Buffers are numbered in the order of their allocations. An allocation that is still held when the
// next step repeats it is kNotPlanned.
struct StepPlan {
  struct Event {
    bool is_alloc = false;
    StreamId stream = 0;
    std::uint32_t buffer = kNotPlanned;
    std::uint64_t bytes = 0;  // of an allocation
  };
  std::vector<Event> events;
  std::vector<PlannedBuffer> buffers;
  std::uint64_t arena_bytes = 0;
  std::uint64_t peak_live_bytes = 0;  // the most bytes of planned buffers at the same time
};

// Plans `step`. It may free allocations of `before`, the step before it. Memory may be reused in
// the order of the recording, so a later step that keeps this order needs no checks.
StepPlan plan_step(const StepRecording& before, const StepRecording& step,
                   packing::PackingEffort effort);

}  // namespace sluice::allocator
