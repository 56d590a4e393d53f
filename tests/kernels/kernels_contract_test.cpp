// The host keeps the contract of Kernels.
#include "tests/contract/activations_contract.hpp"
#include "tests/contract/attention_contract.hpp"
#include "tests/contract/attention_part_contract.hpp"
#include "tests/contract/elementwise_contract.hpp"
#include "tests/contract/embedding_contract.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/contract/norm_contract.hpp"
#include "tests/contract/update_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::testing {

using kernels::host::HostBackend;

INSTANTIATE_TYPED_TEST_SUITE_P(Host, GemmContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, HeadContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, AttentionContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, AttentionPartContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, NormContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, ActivationContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, ElementwiseContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, EmbeddingContract, HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, UpdateContract, HostBackend);

}  // namespace sluice::testing
