// `sluice bench gemm` and `sluice bench attention`: the matrix products and the attention of a
// transformer block as training calls them, compared with torch's in the same rounds.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"

namespace sluice::bench {

struct ProductBenchOptions {
  device::Device* device = nullptr;
  kernels::Kernels* kernels = nullptr;  // of that device
  int threads = 1;                      // of the host's kernels: torch gets as many on the host
  std::int64_t tokens = 0, hidden = 0, heads = 0, time = 0;  // 0: by the backend
  DType dtype = DType::kBF16;
  int rounds = 9;                 // at least 7
  std::string peers_python = {};  // an interpreter that has torch; empty: none
};

// {"event":"bench","name":"gemm","figures":{backend, device, arithmetic, dtype, tokens, hidden,
//   rounds, "products":{"forward" ([tokens, hidden] x [hidden, 4 hidden]) | "input_gradient" |
//   "weight_gradient": {tflops, and with a peer peer_tflops, ratio}}, with a peer "peer":
//   its versions}}
nlohmann::json run_gemm_bench(const ProductBenchOptions& options);

// {"event":"bench","name":"attention","figures":{…, batch, time, heads, head_dim,
//   "products":{"forward" | "backward" | "forward_backward": {tflops, …}}}}
// The attention is causal, and tokens = batch * time; operations are counted below the diagonal
// only. The peer is torch's scaled_dot_product_attention with use_deterministic_algorithms.
nlohmann::json run_attention_bench(const ProductBenchOptions& options);

// Both: figures are medians over rounds that measure all in turn; the ratio is the median of the
// rounds' ratios. Throws InputError for bad options, OutOfMemory, DeviceError, and Error or
// TimeoutError if the peer failed.

}  // namespace sluice::bench
