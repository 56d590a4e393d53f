// `sluice bench adam`: the fused optimizer updates compared with their unavoidable memory traffic,
// in one run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::bench {

struct AdamBenchOptions {
  std::int64_t elems = std::int64_t{1} << 24;  // parameters; 6 to 20 bytes each, by variant
  int threads = 0;                             // as HostKernelOptions
  int rounds = 9;                              // at least 7
  std::vector<std::string> variants;           // names (adam_variants.hpp); empty: all
  // An interpreter that has torch: the peers (adam_peers.hpp) then take part in every round.
  // Empty: no peers.
  std::string peers_python = {};
};

// {"event":"bench","name":"adam","figures":{threads, elems, rounds, instruction_set,
//   "variants": {NAME: {its description, params_per_s, traffic_params_per_s (a loop that reads and
//   writes the same arrays in the same pieces and computes nothing), ratio (of the two),
//   bytes_per_param, gib_per_s}}; with peers also "peers", as AdamPeerRounds::figures returns it}}
// Every round measures all variants in turn. Figures are medians over the rounds; the ratio is the
// median of the rounds' ratios. Throws InputError for bad options, Error or TimeoutError if a peer
// failed, and std::bad_alloc.
nlohmann::json run_adam_bench(const AdamBenchOptions& options);

}  // namespace sluice::bench
