// Causal grouped-query attention on the host; arguments as in Kernels (kernels/kernels.hpp).
//
// All arithmetic is fp32: 16-bit rows are widened in the workspace, and outputs are rounded once.
// Scores exist for one block of 64 query rows at a time, [64, time]. The backward pass recomputes
// them from q, k and lse (FlashAttention, Dao et al. 2022, algorithm 4). It does not split over
// keys, because a block of scores fits the cache. A task is one (batch, kv_head), so the sums of dk
// and dv over the heads of a group and over query blocks have a fixed order.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

// Workspace of the larger pass. Each worker needs four fp32 [time, head_dim] panels (k, v, dk, dv),
// two [64, time] blocks of scores and four [64, head_dim] blocks.
std::uint64_t attention_workspace_bytes(const Parallel& parallel, const AttentionShape& shape);

void attention_forward(const Parallel& parallel, const AttentionShape& shape, const void* qkv,
                       void* out, float* lse, void* workspace);
void attention_backward(const Parallel& parallel, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace);

}  // namespace sluice::kernels::host
