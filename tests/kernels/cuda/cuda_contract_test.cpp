// The GPU keeps the contract of Kernels: emulated on the CPU, and on a GPU with and without
// libraries.
#include "tests/contract/activations_contract.hpp"
#include "tests/contract/attention_contract.hpp"
#include "tests/contract/attention_part_contract.hpp"
#include "tests/contract/elementwise_contract.hpp"
#include "tests/contract/embedding_contract.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/contract/norm_contract.hpp"
#include "tests/contract/update_contract.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"

namespace sluice::testing {

using kernels::cuda::OwnCuda;

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, GemmContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, HeadContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, AttentionContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, AttentionPartContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, NormContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, ActivationContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, ElementwiseContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, EmbeddingContract, OwnCuda);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, UpdateContract, OwnCuda);
#ifndef SLUICE_CUDA_EMULATION
INSTANTIATE_TYPED_TEST_SUITE_P(CudaLibraries, GemmContract, kernels::cuda::InstalledCuda);
#endif

}  // namespace sluice::testing
