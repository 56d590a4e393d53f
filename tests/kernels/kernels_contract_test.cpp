// The host keeps the contract of Kernels.
#include "tests/contract/attention_contract.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Host, GemmContract, kernels::host::HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, HeadContract, kernels::host::HostBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, AttentionContract, kernels::host::HostBackend);

}  // namespace sluice::testing
