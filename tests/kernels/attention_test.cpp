// Attention on the host: threads, workspace, and gradients by finite differences. The contract has
// its values.
#include "kernels/host/attention.hpp"

#include <gtest/gtest.h>

#include "tests/contract/attention_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::kernels::host {
namespace {

using testing::attention_shapes;
using testing::AttentionOutput;
using testing::out_elems;
using testing::qkv_elems;

AttentionOutput forward(Kernels& kernels, const AttentionShape& s, const DTypeArray& qkv) {
  return testing::attend<HostBackend>(kernels, s, qkv);
}
DTypeArray backward_of(Kernels& kernels, const AttentionShape& s, const DTypeArray& dout,
                       const DTypeArray& qkv, const AttentionOutput& saved) {
  return testing::attend_backward<HostBackend>(kernels, s, dout, qkv, saved);
}

class AttentionOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOf,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(Attention, BackwardMatchesFiniteDifferencesOfFp64) {
  const auto kernels = make_host_kernels({.threads = 2});
  for (const AttentionShape& s : attention_shapes<HostBackend>(DType::kF32)) {
    if (s.time > 200 || s.head_dim > 128) continue;
    const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 3));
    const DTypeArray dout(s.dtype, normal_floats(out_elems(s), 4));
    const DTypeArray got = backward_of(*kernels, s, dout, qkv, forward(*kernels, s, qkv));
    const auto weights = doubles(dout);
    const auto loss = [&](const reference::Doubles& values) {
      const auto result = reference::attention(s, values);
      double sum = 0.0;
      for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * result.out[i];
      return sum;
    };
    const auto values = doubles(qkv);
    // Some forty elements spread over batch, time, q, k and v.
    const std::size_t step = std::max<std::size_t>(1, values.size() / 41);
    for (std::size_t i = 0; i < values.size(); i += step) {
      const double want = reference::derivative(loss, values, i);
      ASSERT_NEAR(got[i], want, 2e-5 * (1.0 + std::abs(want))) << "time " << s.time << " at " << i;
    }
  }
}

TEST_P(AttentionOf, BitsDoNotDependOnTheThreadCount) {
  const auto one = make_host_kernels({.threads = 1});
  for (const AttentionShape& s : attention_shapes<HostBackend>(GetParam())) {
    const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 7));
    const DTypeArray dout(s.dtype, normal_floats(out_elems(s), 8));
    const AttentionOutput saved = forward(*one, s, qkv);
    const DTypeArray grad = backward_of(*one, s, dout, qkv, saved);
    for (const int threads : {2, 3}) {
      const auto more = make_host_kernels({.threads = threads});
      EXPECT_TRUE(forward(*more, s, qkv) == saved) << threads;
      EXPECT_TRUE(backward_of(*more, s, dout, qkv, saved) == grad) << threads;
    }
  }
}

TEST(Attention, WorkspaceGrowsWithTimeAndNotWithItsSquare) {
  const Parallel parallel(2);
  const AttentionShape s{8, 4096, 16, 8, 64, DType::kBF16};
  const std::uint64_t panels = 4 * 4096 * 64 * 4, scores = 2 * 64 * 4096 * 4;
  EXPECT_LE(attention_workspace_bytes(parallel, s), 2 * (panels + scores + 128 * kKiB));
}

}  // namespace
}  // namespace sluice::kernels::host
