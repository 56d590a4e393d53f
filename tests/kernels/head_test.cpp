// The head on the host: threads, and gradients by finite differences. The contract has its values.
#include "kernels/host/head.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "kernels/host/gemm.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::kernels::host {
namespace {

using testing::HeadBatch;
using testing::HeadResult;
using testing::kHeadLossScale;
using testing::kHeadShapes;
using testing::kSlicedHeads;

HeadResult run(const HeadBatch& in, int threads) {
  return testing::run_head<HostBackend>(*make_host_kernels({.threads = threads}), in);
}

// Gradients may be rounded to bf16 on the way (native bf16) and are on the way out.
double allowed(const HeadShape& s, double want) {
  const double gradient = 4e-5 + (s.dtype == DType::kF32 ? 0 : 2 * rounding_of(s.dtype));
  return gradient * (std::abs(want) + 0.05 * static_cast<double>(kHeadLossScale));
}

class HeadOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, HeadOf, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(HeadOf, GradientsMatchFiniteDifferencesOfFp64) {
  for (HeadShape s :
       {kHeadShapes[0], kHeadShapes[1], kHeadShapes[2], kSlicedHeads[0], kSlicedHeads[1]}) {
    s.dtype = GetParam();
    const HeadBatch in(s);
    const HeadResult got = run(in, 2);
    const auto x = doubles(in.x), w = doubles(in.w);
    const auto of_x = [&](const reference::Doubles& values) {
      return reference::head(s, values, w, in.targets).loss_sum;
    };
    const auto of_w = [&](const reference::Doubles& values) {
      return reference::head(s, x, values, in.targets).loss_sum;
    };
    for (std::size_t i = 0; i < x.size(); i += std::max<std::size_t>(1, x.size() / 13)) {
      const double want = kHeadLossScale * reference::derivative(of_x, x, i);
      ASSERT_NEAR(got.dx[i], want, allowed(s, want)) << "dx " << i << " rows " << s.rows;
    }
    for (std::size_t i = 0; i < w.size(); i += std::max<std::size_t>(1, w.size() / 13)) {
      const double want = kHeadLossScale * reference::derivative(of_w, w, i);
      ASSERT_NEAR(got.dw[i], want, allowed(s, want)) << "dw " << i << " rows " << s.rows;
    }
  }
}

TEST_P(HeadOf, BitsDoNotDependOnTheThreadCount) {
  for (HeadShape s :
       {kHeadShapes[2], kSlicedHeads[0], kSlicedHeads[1], kSlicedHeads[2], kSlicedHeads[3]}) {
    s.dtype = GetParam();
    const HeadBatch in(s);
    const HeadResult one = run(in, 1);
    EXPECT_TRUE(run(in, 2) == one);
    EXPECT_TRUE(run(in, 3) == one);
  }
}

TEST(Head, RefusesATargetOutsideTheVocabulary) {
  for (const std::int32_t target : {-1, 63}) {
    HeadBatch in({1, 17, 63, DType::kF32});
    in.targets[0] = target;
    EXPECT_THROW(run(in, 2), InternalError);
  }
}

TEST(Head, NeverHoldsAllLogits) {
  const Parallel parallel(2);
  const Gemm gemm(parallel, Bf16Gemm::kViaF32);
  const HeadShape s{4096, 768, 50257, DType::kBF16};
  // 64 rows of logits, and panels of GEMM.
  EXPECT_LE(head_workspace_bytes(gemm, s), 64ull * 50257 * 4 + 10 * kMiB);
}

}  // namespace
}  // namespace sluice::kernels::host
