// Rectangles of attention's scores on the host; arguments as in Kernels (kernels/kernels.hpp).
//
// All arithmetic is fp32, as in attention.hpp, and outputs and gradients stay in fp32 until the
// last part has been added. Each row of an output is added to by one task, and each row of a
// gradient in the order of heads and query blocks, so the bits do not depend on the number of
// threads.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

// Workspace of the larger pass.
std::uint64_t attention_part_workspace_bytes(const Parallel& parallel, const AttentionPart& part);

void attention_part_forward(const Parallel& parallel, const AttentionPart& part, const void* qkv,
                            const void* kv, bool first, float* out, float* lse, void* workspace);
void attention_part_backward(const Parallel& parallel, const AttentionPart& part, const void* dout,
                             const void* qkv, const void* kv, const void* out, const float* lse,
                             float* dq, float* dkv, void* workspace);

}  // namespace sluice::kernels::host
