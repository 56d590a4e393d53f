#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/cuda/stream.hpp"

namespace sluice::kernels::cuda {

// c [rows, cols] (fp32, rows `stride` elements apart) += bias [cols] of an act dtype.
void add_bias(StreamHandle stream, float* c, const void* bias, DType bias_dtype, std::int64_t rows,
              std::int64_t cols, std::int64_t stride);

}  // namespace sluice::kernels::cuda
