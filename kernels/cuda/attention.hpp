// Causal grouped-query attention on the GPU; arguments as in Kernels (kernels/kernels.hpp).
//
// The kernels follow FlashAttention-2 (Dao 2023): scores exist for one tile at a time, in
// registers. The backward pass recomputes them from q, k and lse in two kernels: one over tiles of
// keys for dk and dv, and one over tiles of queries for dq. This recomputes scores once more than a
// single kernel would, but every sum has one owner and one order: no atomics, and the same bits in
// every run.
//
// Tensor cores handle 16-bit dtypes with head_dim a multiple of 8. All other shapes use plain fp32
// kernels (attention_plain.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Besides the bounds of Kernels, head_dim is at most this (otherwise InternalError).
inline constexpr std::int64_t kMaxHeadDim = 256;

// fp32 [batch, heads, time]: the sum of dout * out of each query, for the backward pass.
std::uint64_t attention_workspace_bytes(const AttentionShape& shape);

void attention_forward(StreamHandle stream, const AttentionShape& shape, const void* qkv, void* out,
                       float* lse, void* workspace);
void attention_backward(StreamHandle stream, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace);

}  // namespace sluice::kernels::cuda
