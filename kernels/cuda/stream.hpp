// The stream type, for headers that need nothing else of CUDA.
#pragma once

struct CUstream_st;

namespace sluice::kernels::cuda {

// A cudaStream_t or CUstream; null: the default stream.
using StreamHandle = CUstream_st*;

}  // namespace sluice::kernels::cuda
