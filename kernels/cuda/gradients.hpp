// Gradient plumbing on a GPU: accumulation, norms, casts, sums over ranks. Arguments as in Kernels
// (kernels/kernels.hpp). Pointers are device memory, or registered host memory, which a GPU
// accesses at the same address. All functions queue on `stream`. Bits equal the host's: no
// operation is fused, and no order of a sum depends on the grid. (The payload of a NaN may differ.)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

void accumulate(StreamHandle stream, float* accumulator, const void* grad, DType grad_dtype,
                bool first, std::int64_t elems);

// The list of blocks travels in the launches' parameters; adjoining blocks of equal length count as
// one run. Nothing is copied, and `blocks` is not read after the call.
void squared_norm_blocks(StreamHandle stream, const void* grad, DType dtype, DType round_to,
                         std::span<const Kernels::Block> blocks, double* partial);

void cast(StreamHandle stream, const void* in, DType in_dtype, void* out, DType out_dtype,
          bool weight_rounding, std::int64_t elems);

// The contributions of ranks to a reduction, [elems] each: this rank's part, and in `others` the
// parts of all ranks in order. The place of `own_rank` in `others` is not read.
struct RankParts {
  const void* own = nullptr;
  const void* others = nullptr;
  int own_rank = 0;
  int ranks = 1;
};
// out = the sum of the parts along law 2's tree (collectives/fold.hpp). Act dtypes are added in
// fp32 and rounded once to out_dtype, another act dtype or their own; kF64, kI32 and kI64 are added
// in their own type. out may be parts.own if the types are equal. Other dtypes: InternalError.
void fold_ranks(StreamHandle stream, const RankParts& parts, DType dtype, void* out,
                DType out_dtype, std::int64_t elems);

}  // namespace sluice::kernels::cuda
