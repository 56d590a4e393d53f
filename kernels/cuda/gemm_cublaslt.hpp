// Matrix products with cuBLASLt.
//
// The key of a product is its shape, dtypes, bias and pointer alignment. The library's heuristic is
// asked once per key; descriptors and the algorithm are kept. Equal products run the same kernel
// for the whole process, and another process on the same machine gets the same answer. Reductions
// of a split k that use atomics or a rounded output are excluded.
#pragma once

#include <memory>

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/gemm.hpp"

namespace sluice::kernels::cuda {

// NVIDIA's recommendation from Hopper on (cuBLAS documentation, "cublasSetWorkspace").
inline constexpr std::uint64_t kCublasLtWorkspaceBytes = 32ull << 20;

// The first product creates the handle, in the context that is current then.
std::unique_ptr<GemmBackend> make_cublaslt_gemm(const CublasLt& functions,
                                                GeluEpilogue gelu = GeluEpilogue::kFused);

}  // namespace sluice::kernels::cuda
