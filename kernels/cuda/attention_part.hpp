// Rectangles of attention's scores on the GPU; arguments as in Kernels (kernels/kernels.hpp).
//
// All arithmetic is fp32 without tensor cores, for every dtype. Each output and each gradient has
// one owner, which adds in rising order of keys, or of heads and queries: no atomics, and the same
// bits in every run.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// fp32 [heads, queries]: the sum of dout * out of each query, for the backward pass.
std::uint64_t attention_part_workspace_bytes(const AttentionPart& part);

void attention_part_forward(StreamHandle stream, const AttentionPart& part, const void* qkv,
                            const void* kv, bool first, float* out, float* lse);
void attention_part_backward(StreamHandle stream, const AttentionPart& part, const void* dout,
                             const void* qkv, const void* kv, const void* out, const float* lse,
                             float* dq, float* dkv, void* workspace);

}  // namespace sluice::kernels::cuda
