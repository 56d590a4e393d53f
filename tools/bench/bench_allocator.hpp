// `sluice bench allocator`: the cost of an allocation and a free that memory at hand serves. The
// device only counts. A replica of PyTorch's rules is measured in the same run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

struct AllocatorBenchOptions {
  int threads = 0;           // of the run with many threads; 0: all cores
  double seconds = 0.2;      // approximate time for each figure, over all rounds
  int rounds = 9;            // at least 1
  std::uint32_t layers = 0;  // as dense_mixes()
};

// {"event":"bench","name":"allocator","figures":{threads, rounds, and for each MIX of dense_mixes()
//   MIX_operations: operations of an iteration,
//   {native,dynamic,planned}_MIX_{ns,p50_ns,p99_ns,p999_ns,max_ns}: time of an operation (an
//     allocation or a free): the mean, percentiles and the maximum,
//   native_locked_MIX_ns: the mean with the two locks that the original takes in each call,
//   {dynamic,planned}_MIX_{ratio,locked_ratio}: mean of native and native_locked / mean of these,
//   planned_MIX_share: share of the allocations that the plan answered,
//   {dynamic,own_streams,same_stream}_MIX_hit_share: share of allocations served by free memory,
//   {own_streams,same_stream}_MIX_{ops_per_s,scaling}: rate of dynamic with all threads together,
//     each pinned to a processor, with memory for the peaks of all streams at once; and that rate /
//     the rate of one thread,
//   record_MIX_ns_per_event: time that a MemoryRecorder adds for each event (a free is two)}}
// dynamic is CachingAllocator. planned is PlanningAllocator, in step with its plan. native is the
// replica; it finds blocks by a dense index, not by a hash of the address (native_locked too).
//
// All are called directly, from loops over arrays of requests, and every round measures all in
// turn. A round's value is the median over its iterations of an operation's mean time. Figures are
// medians over the rounds; ratios and differences are medians of the rounds' ratios and
// differences. Single operations are timed in a separate pass, between two readings of the clock,
// minus the cost of two readings. Throws InputError for bad options.
nlohmann::json run_allocator_bench(const AllocatorBenchOptions& options);

}  // namespace sluice::bench
