// Matrix products with our own kernels. They run if cuBLASLt is not installed, and they serve the
// emulated tests of everything above GEMM.
//
// 16-bit operands: tiles of 128 x 128 x 32 on tensor cores (mma m16n8k16), two tiles in flight.
// fp32: tiles of 64 x 64 x 16 with fused multiply-adds. Every element of C is one sum over k in
// rising order, whatever the grid.
// rising order, whatever the grid.
#pragma once

#include <memory>

#include "kernels/cuda/gemm.hpp"

namespace sluice::kernels::cuda {

std::unique_ptr<GemmBackend> make_plain_gemm();

}  // namespace sluice::kernels::cuda
