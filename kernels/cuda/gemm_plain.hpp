// Matrix products by kernels of our own: what runs where cuBLASLt is not installed, and what the
// emulated tests of everything above GEMM stand on.
//
// 16-bit operands: tiles of 128 x 128 x 32 over tensor cores (mma m16n8k16), two tiles in flight.
// fp32: tiles of 64 x 64 x 16 by fused multiply-adds. Every element of C is one sum over k in
// rising order, whatever the grid.
#pragma once

#include <memory>

#include "kernels/cuda/gemm.hpp"

namespace sluice::kernels::cuda {

std::unique_ptr<GemmBackend> make_plain_gemm();

}  // namespace sluice::kernels::cuda
