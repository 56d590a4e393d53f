// `sluice bench adam`: the fused optimizer update beside the memory traffic that it cannot avoid,
// in one run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

struct AdamBenchOptions {
  std::int64_t elems = std::int64_t{1} << 24;  // parameters; 18 bytes of memory for each
  int threads = 0;                             // as HostKernelOptions
  int rounds = 9;                              // at least 7
  // An interpreter that has torch (adam_peers.hpp): others' AdamW takes part in every round.
  // Empty: none does.
  std::string peers_python;
};

// {"event":"bench","name":"adam","figures":{threads, elems, rounds, instruction_set, and for
//   gradients of bf16 and of f32: GRAD_params_per_s, GRAD_traffic_params_per_s (a loop that reads
//   and writes the same arrays in the same pieces and computes nothing), GRAD_ratio (of the two),
//   GRAD_bytes_per_param, GRAD_gib_per_s; with peers also "peers", as AdamPeerRounds::figures has
//   it, ours being called bf16 and f32}}
// Every round measures all of them in turn; figures are medians over the rounds, the ratio the
// median of the rounds' ratios. InputError: bad options. Error, TimeoutError: a peer failed.
// std::bad_alloc: no room.
nlohmann::json run_adam_bench(const AdamBenchOptions& options);

}  // namespace sluice
