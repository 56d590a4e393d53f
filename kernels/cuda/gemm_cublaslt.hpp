// Matrix products by cuBLASLt.
//
// A product's key is its shape, dtypes, bias and the alignment of its pointers. The library's
// heuristic is asked once for a key; descriptors and the algorithm are kept, so equal products run
// the same kernel for the whole process, and a further process on the same machine is told the
// same. Reductions of a split k that go through atomics or a rounded output are excluded.
#pragma once

#include <memory>

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/gemm.hpp"

namespace sluice::kernels::cuda {

// What NVIDIA recommends from Hopper on (cuBLAS documentation, "cublasSetWorkspace").
inline constexpr std::uint64_t kCublasLtWorkspaceBytes = 32ull << 20;

// The handle is made by the first product, in the context that is current then.
std::unique_ptr<GemmBackend> make_cublaslt_gemm(const CublasLt& functions,
                                                GeluEpilogue gelu = GeluEpilogue::kFused);

}  // namespace sluice::kernels::cuda
