// Gradient plumbing on a GPU: accumulation, norms, casts, folds of ranks. Arguments as in Kernels
// (kernels/kernels.hpp); pointers are device memory, or registered host memory, which a GPU reads
// and writes at the same address. All queue on `stream`. Bits equal the host's: no operation is
// fused, no sum's order depends on the grid. (A NaN made by arithmetic is the GPU's own: its
// payload may differ.)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

void accumulate(StreamHandle stream, float* accumulator, const void* grad, DType grad_dtype,
                bool first, std::int64_t elems);

// The list of blocks goes to the GPU in the launches' own parameters, runs of blocks that adjoin
// and have one length as one: no copy, and no memory of this side is read later.
void squared_norm_blocks(StreamHandle stream, const void* grad, DType dtype, DType round_to,
                         std::span<const Kernels::Block> blocks, double* partial);

void cast(StreamHandle stream, const void* in, DType in_dtype, void* out, DType out_dtype,
          bool weight_rounding, std::int64_t elems);

// What ranks contributed to a reduction, [elems] each: the own part, and in `others` every rank's
// part one behind the other; place `own_rank` of `others` is not read.
struct RankParts {
  const void* own = nullptr;
  const void* others = nullptr;
  int own_rank = 0;
  int ranks = 1;
};
// out = part 0 + part 1 + ..., in rank order; fp32 for act dtypes, rounded once at the end; kF64,
// kI32 and kI64 in themselves. out may be parts.own. Other dtypes: InternalError.
void fold_ranks(StreamHandle stream, const RankParts& parts, void* out, DType dtype,
                std::int64_t elems);

}  // namespace sluice::kernels::cuda
