// Causal grouped-query attention on the GPU; arguments as in Kernels (kernels/kernels.hpp).
//
// Flash style: scores exist for one tile at a time, in registers (FlashAttention-2, Dao 2023). The
// backward pass makes them again from q, k and lse, in two kernels: one over tiles of keys for dk
// and dv, one over tiles of queries for dq. That recomputes scores once more than a single kernel
// would, but every sum has one owner and one order: no atomics, the same bits in every run.
//
// Tensor cores take 16-bit dtypes with head_dim a multiple of 8; anything else goes to plain fp32
// kernels (attention_plain.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Besides what Kernels demands, head_dim is at most this (else InternalError).
inline constexpr std::int64_t kMaxHeadDim = 256;

// fp32 [batch, heads, time]: for each query, the sum of dout * out that the backward pass needs.
std::uint64_t attention_workspace_bytes(const AttentionShape& shape);

void attention_forward(StreamHandle stream, const AttentionShape& shape, const void* qkv, void* out,
                       float* lse, void* workspace);
void attention_backward(StreamHandle stream, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace);

}  // namespace sluice::kernels::cuda
