// A plan for a caller that allocates and frees the same in every step: offsets in one arena, made
// from a recorded step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/caching/stream_pool.hpp"
#include "allocator/packing/arena_packing.hpp"

namespace sluice::allocator {

// One call within a step. A free names its allocation by its number among the allocations of the
// step it was made in.
struct StepEvent {
  enum class Kind : std::uint8_t { kAlloc, kFree };
  Kind kind = Kind::kAlloc;
  StreamId stream = 0;          // of an allocation
  std::uint32_t number = 0;     // kAlloc: its own
  std::uint32_t steps_ago = 0;  // kFree: 0: allocated in this step, 1: in the one before
  std::uint64_t bytes = 0;      // of an allocation, in multiples of BlockSpace::kAlignment
  std::vector<StreamId> uses;   // kFree: the other streams that had used it

  friend bool operator==(const StepEvent&, const StepEvent&) = default;
};

// The calls of a step, in order; frees of what is older than a step are not among them.
struct StepRecording {
  std::vector<StepEvent> events;
  std::uint32_t allocation_count = 0;

  friend bool operator==(const StepRecording&, const StepRecording&) = default;
};

// The share of the allocations that both steps have, by stream and size, whatever their order, of
// the larger number.
double matching_share(const StepRecording& a, const StepRecording& b);

constexpr std::uint32_t kNotPlanned = UINT32_MAX;

struct PlannedBuffer {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  StreamId stream = 0;
  std::vector<StreamId> uses;  // other streams', in the recording
  // What is recorded when it is freed, for others to wait for: its own stream and those that used
  // it, where any buffer waits for it; else empty.
  std::vector<StreamId> release_streams;
  // Before it is used its stream waits for what these buffers recorded when they were freed: the
  // last user of an overlapping place on each other stream.
  struct Wait {
    std::uint32_t buffer;
    StreamId stream;
  };
  std::vector<Wait> waits;
};

// Buffers are numbered in the order of their allocations; kNotPlanned where one is still held when
// the next step allocates its like.
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
  std::uint64_t peak_live_bytes = 0;  // of planned buffers at once
};

// Plans `step`; `before` is the step before it, whose allocations it may free. Memory may be reused
// in the order of the recording: a later step that keeps the order needs no check.
StepPlan plan_step(const StepRecording& before, const StepRecording& step,
                   packing::PackingEffort effort);

}  // namespace sluice::allocator
