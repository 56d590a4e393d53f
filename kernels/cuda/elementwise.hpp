// Sums and zeros on a GPU. Arguments as in Kernels (kernels/kernels.hpp); all functions queue on
// `stream`. Errors: DeviceError if a launch fails, InternalError if a dtype is no act dtype.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

void zero(StreamHandle stream, void* data, std::uint64_t bytes);

void add(StreamHandle stream, const void* a, const void* b, void* out, std::int64_t elems,
         DType dtype);

// The order of the sums is that of kernels/cuda/column_sums.cuh.
void column_sum(StreamHandle stream, const void* x, void* out, std::int64_t rows, std::int64_t cols,
                DType dtype);

// Elements of any dtype; bits are copied.
void copy_columns(StreamHandle stream, const void* in, Kernels::Columns from, void* out,
                  Kernels::Columns to, std::int64_t rows, std::int64_t cols, DType dtype);

void fold(StreamHandle stream, void* into, const void* from, DType dtype, std::int64_t elems);

}  // namespace sluice::kernels::cuda
