// Runs a recorded trace through fresh allocators of ours, over a device that only counts. It shows
// the effect of another cap, of other settings, or of less memory held at one point.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/caching/oom_report.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::allocator {

struct SimulatedAllocator {
  std::uint64_t capacity_bytes = UINT64_MAX;  // for pages of the allocator
  CachingAllocatorOptions options;            // the recorder in it is not used
  std::vector<std::uint64_t> fixed_streams;   // not movable; streams of private pools never are
  bool plans = false;                         // puts a PlanningAllocator in front
  bool releases_each_step = false;            // calls release_cached() at each step
  // These allocations are freed right before operation `freed_at`. A free of one of them that the
  // trace has later does nothing.
  std::vector<std::uint32_t> freed_early;
  std::size_t freed_at = 0;
};

struct SimulationOutcome {
  bool completed = false;
  std::uint64_t operation_count = 0;  // completed operations: the index of the one that failed
  bool failed_at_start = false;       // the memory held before the first operation did not fit
  std::uint64_t peak_reserved_bytes = 0;
  // Null if the trace completed. Streams and names are those of the trace.
  std::shared_ptr<const OomReport> report;
};

// Runs to the end of the trace or to the first request that fails. Deterministic.
SimulationOutcome simulate(const record::MemoryTrace& trace, const SimulatedAllocator& settings);

}  // namespace sluice::allocator
