// A recorded trace through fresh allocators of ours over a device that only counts: what would have
// happened with another cap, other settings, or less memory held at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/caching/oom_report.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::allocator {

struct SimulatedAllocator {
  std::uint64_t capacity_bytes = UINT64_MAX;  // of pages
  CachingAllocatorOptions options;            // its recorder is not used
  std::vector<std::uint64_t> fixed_streams;   // not movable; those of private pools never are
  bool plans = false;                         // through a PlanningAllocator
  bool releases_each_step = false;            // release_cached() at each step
  // Allocations that are freed right before the last operation.
  std::vector<std::uint32_t> freed_before_last;
};

struct SimulationOutcome {
  bool completed = false;
  std::uint64_t operation_count = 0;  // done; where one failed, its index
  bool failed_at_start = false;       // what is held before the first operation did not fit
  std::uint64_t peak_reserved_bytes = 0;
  // Where it did not complete: in the words of the trace (its streams and names).
  std::shared_ptr<const OomReport> report;
};

// Up to the trace's end or the first request that fails. The same for the same arguments.
SimulationOutcome simulate(const record::MemoryTrace& trace, const SimulatedAllocator& settings);

}  // namespace sluice::allocator
