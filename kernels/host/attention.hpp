// Causal grouped-query attention on the host; arguments as in Kernels (kernels/kernels.hpp).
//
// All math is fp32 (16-bit rows are widened in the workspace, outputs rounded once). Scores exist
// for one block of 64 query rows at a time, [64, time]; the backward pass makes them again from q,
// k and lse (FlashAttention, Dao et al. 2022, algorithm 4, without its split over keys: a row of
// scores fits the cache here). Work is cut into (batch, kv_head) tasks, so the sums of dk and dv
// over the heads of a group and over query blocks have one fixed order.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

// What the larger of the two passes needs: per worker, four fp32 [time, head_dim] panels (k, v, dk,
// dv), two [64, time] blocks of scores and four [64, head_dim] blocks.
std::uint64_t attention_workspace_bytes(const Parallel& parallel, const AttentionShape& shape);

void attention_forward(const Parallel& parallel, const AttentionShape& shape, const void* qkv,
                       void* out, float* lse, void* workspace);
void attention_backward(const Parallel& parallel, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace);

}  // namespace sluice::kernels::host
