// Gradient plumbing on the host: column sums, accumulation, norms, casts. Arguments as in Kernels
// (kernels/kernels.hpp). All of it follows the arithmetic contract (docs/design/arithmetic.md): no
// fused multiply-add, bf16 rounded by integer arithmetic, sums in an order that only the shape
// determines. The bits are the same for every thread count and instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

// Sums blocks of kSumRows rows (kernels/host/column_sums.hpp) in row order, then the blocks in
// order, all in fp32.
void column_sum(const Parallel& parallel, const void* x, void* out, std::int64_t rows,
                std::int64_t cols, DType dtype);

void accumulate(const Parallel& parallel, float* accumulator, const void* grad, DType grad_dtype,
                bool first, std::int64_t elems);

void fold(const Parallel& parallel, void* into, const void* from, DType dtype, std::int64_t elems);

// Element i of a block is added to fp64 lane i % 16; the lanes are then added by l[i] += l[i + w]
// for w = 8, 4, 2, 1. Squares of fp32 numbers are exact in fp64. round_to: see Kernels.
void squared_norm_blocks(const Parallel& parallel, const void* grad, DType dtype, DType round_to,
                         std::span<const Kernels::Block> blocks, double* partial);

void cast(const Parallel& parallel, const void* in, DType in_dtype, void* out, DType out_dtype,
          bool weight_rounding, std::int64_t elems);

}  // namespace sluice::kernels::host
