// `sluice bench allocator`: what an allocation and a free cost that are served by memory at hand,
// over a device that only counts, beside a replica of PyTorch's rules in the same run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

struct AllocatorBenchOptions {
  int threads = 0;           // of the run beside that of one thread; 0: all cores
  double seconds = 0.2;      // about, for each figure, over all rounds
  int rounds = 9;            // at least 1
  std::uint32_t layers = 0;  // as dense_mixes()
};

// {"event":"bench","name":"allocator","figures":{threads, rounds, and for each MIX of dense_mixes()
//   MIX_operations (of an iteration),
//   {native,dynamic,planned}_MIX_{ns,p50_ns,p99_ns,p999_ns,max_ns}: of an operation, which is an
//     allocation or a free: the mean, and single ones,
//   native_locked_MIX_ns: the mean with the two locks that the original takes in each call,
//   {dynamic,planned}_MIX_{ratio,locked_ratio}: native's and native_locked's mean by theirs,
//   planned_MIX_share: of the allocations, answered by the plan,
//   {dynamic,own_streams,same_stream}_MIX_hit_share: of the allocations, served by free memory,
//   {own_streams,same_stream}_MIX_{ops_per_s,scaling}: of dynamic, of all threads together, each on
//     a processor and over all its time, with memory for all their streams' most at once; and by
//     those of one thread,
//   record_MIX_ns_per_event: what a MemoryRecorder adds for each event (a free is two)}}
// dynamic: CachingAllocator. planned: PlanningAllocator, in step with its plan. native: the peer
// replica, which finds blocks by a dense index, not a hash of the address (native_locked too).
// All are called directly, from loops over arrays of requests. Every round measures all in turn:
// the mean of the operations of an iteration, the median of the round's iterations. Figures are
// medians over the rounds, ratios and differences medians of the rounds'. Single operations are
// timed in a pass of their own, between two readings of the clock, less what two readings cost with
// nothing between them. InputError: bad options.
nlohmann::json run_allocator_bench(const AllocatorBenchOptions& options);

}  // namespace sluice::bench
