// The GPU keeps the contract of Kernels: emulated on the CPU, and on a GPU with and without
// libraries.
#include "tests/contract/attention_contract.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"

namespace sluice::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, GemmContract, kernels::cuda::OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, HeadContract, kernels::cuda::OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, AttentionContract, kernels::cuda::OwnCuda);
#ifndef SLUICE_CUDA_EMULATION
INSTANTIATE_TYPED_TEST_SUITE_P(CudaLibraries, GemmContract, kernels::cuda::InstalledCuda);
#endif

}  // namespace sluice::testing
