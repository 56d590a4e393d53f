// Attention in parts on the host: threads. The contract has its values.
#include "kernels/host/attention_part.hpp"

#include <gtest/gtest.h>

#include "tests/contract/attention_part_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::kernels::host {
namespace {

using testing::attend_in_parts;
using testing::attention_parts;
using testing::Parts;
using testing::qkv_elems;

TEST(AttentionPart, BitsDoNotDependOnTheThreadCount) {
  const auto one = make_host_kernels({.threads = 1}), four = make_host_kernels({.threads = 4});
  for (const Parts& parts : attention_parts<HostBackend>(DType::kBF16)) {
    const DTypeArray qkv(DType::kBF16, normal_floats(qkv_elems(parts.shape), 7));
    EXPECT_TRUE(attend_in_parts<HostBackend>(*one, parts, qkv, {0, 1, 2}) ==
                attend_in_parts<HostBackend>(*four, parts, qkv, {0, 1, 2}));
  }
}

}  // namespace
}  // namespace sluice::kernels::host
