// `sluice bench adam`: the fused optimizer updates beside the memory traffic that they cannot
// avoid, in one run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::bench {

struct AdamBenchOptions {
  std::int64_t elems = std::int64_t{1} << 24;  // parameters; 6 to 20 bytes for each and variant
  int threads = 0;                             // as HostKernelOptions
  int rounds = 9;                              // at least 7
  std::vector<std::string> variants;           // names (adam_variants.hpp); empty: all
  // An interpreter that has torch (adam_peers.hpp): others' AdamW takes part in every round.
  // Empty: none does.
  std::string peers_python = {};
};

// {"event":"bench","name":"adam","figures":{threads, elems, rounds, instruction_set,
//   "variants": {NAME: {what, params_per_s, traffic_params_per_s (a loop that reads and writes the
//   same arrays in the same pieces and computes nothing), ratio (of the two), bytes_per_param,
//   gib_per_s}}; with peers also "peers", as AdamPeerRounds::figures has it}}
// Every round measures all of them in turn; figures are medians over the rounds, the ratio the
// median of the rounds' ratios. InputError: bad options. Error, TimeoutError: a peer failed.
// std::bad_alloc: no room.
nlohmann::json run_adam_bench(const AdamBenchOptions& options);

}  // namespace sluice::bench
