#include "kernels/host/head.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "kernels/host/gemm.hpp"
#include "tests/kernels/dtype_array.hpp"
#include "tests/kernels/guarded_workspace.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::host {
namespace {

constexpr float kLossScale = 0.125f;

struct Batch {
  HeadShape shape;
  DTypeArray x, w;
  std::vector<std::int32_t> targets;

  explicit Batch(const HeadShape& s)
      : shape(s),
        x(s.dtype, normal_floats(s.rows * s.hidden, 1)),
        w(s.dtype, normal_floats(s.vocab * s.hidden, 2, 0.3f)) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      targets.push_back(static_cast<std::int32_t>(r * 7919 % s.vocab));
    }
    targets.back() = static_cast<std::int32_t>(s.vocab - 1);
  }
};

struct Result {
  double loss_sum = -1.0;
  DTypeArray lse, dx, dw;
  bool operator==(const Result&) const = default;
};

Result run(const Batch& in, int threads) {
  const Parallel parallel(threads);
  const Gemm gemm(parallel, Bf16Gemm::kAuto);
  const HeadShape& s = in.shape;
  Result result{-1.0, DTypeArray(DType::kF32, s.rows), DTypeArray(s.dtype, s.rows * s.hidden),
                DTypeArray(s.dtype, s.vocab * s.hidden)};
  auto* const lse = static_cast<float*>(result.lse.data());
  const std::uint64_t bytes = head_workspace_bytes(gemm, s);
  {
    GuardedWorkspace workspace(bytes);
    head_forward(parallel, gemm, s, in.x.data(), in.w.data(), in.targets.data(), kLossScale,
                 &result.loss_sum, lse, result.dx.data(), workspace.data());
  }
  GuardedWorkspace workspace(bytes);
  head_backward_weight(parallel, gemm, s, in.x.data(), in.w.data(), in.targets.data(), kLossScale,
                       lse, result.dw.data(), workspace.data());
  EXPECT_TRUE(result.lse.guard_is_whole() && result.dx.guard_is_whole() &&
              result.dw.guard_is_whole());
  return result;
}

reference::Doubles doubles(const DTypeArray& array) {
  reference::Doubles values;
  for (std::size_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

// Gradients may be rounded to bf16 on the way (native bf16) and are on the way out.
double allowed(const HeadShape& s, double want) {
  const double gradient = 4e-5 + (s.dtype == DType::kF32 ? 0 : 2 * rounding_of(s.dtype));
  return gradient * (std::abs(want) + 0.05 * static_cast<double>(kLossScale));
}

// Slices of rows: vocab 20000 leaves 64 rows each; vocabulary steps of 8192: three, the last
// ragged.
const HeadShape kShapes[] = {{1, 1, 1}, {1, 17, 63}, {17, 63, 257}, {130, 24, 1000}, {20, 8, 512}};
const HeadShape kSliced = {130, 5, 20000};
// Two slices of the vocabulary, the last one shorter.
const HeadShape kColumns = {1000, 3, 1501};

class HeadOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, HeadOf, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

void expect_loss_right(const Batch& in, const Result& got) {
  const auto want = reference::head(in.shape, doubles(in.x), doubles(in.w), in.targets);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 2e-6 * (1.0 + std::abs(want.loss_sum)));
  for (std::size_t r = 0; r < want.lse.size(); ++r) {
    ASSERT_NEAR(got.lse[r], want.lse[r], 2e-6 * (1.0 + std::abs(want.lse[r]))) << r;
  }
}

TEST_P(HeadOf, LossMatchesFp64) {
  for (HeadShape s :
       {kShapes[0], kShapes[1], kShapes[2], kShapes[3], kShapes[4], kSliced, kColumns}) {
    s.dtype = GetParam();
    const Batch in(s);
    expect_loss_right(in, run(in, 2));
  }
}

TEST_P(HeadOf, GradientsMatchFiniteDifferencesOfFp64) {
  for (HeadShape s : kShapes) {
    s.dtype = GetParam();
    const Batch in(s);
    const Result got = run(in, 2);
    const auto x = doubles(in.x), w = doubles(in.w);
    const auto of_x = [&](const reference::Doubles& values) {
      return reference::head(s, values, w, in.targets).loss_sum;
    };
    const auto of_w = [&](const reference::Doubles& values) {
      return reference::head(s, x, values, in.targets).loss_sum;
    };
    for (std::size_t i = 0; i < x.size(); i += std::max<std::size_t>(1, x.size() / 13)) {
      const double want = kLossScale * reference::derivative(of_x, x, i);
      ASSERT_NEAR(got.dx[i], want, allowed(s, want)) << "dx " << i << " rows " << s.rows;
    }
    for (std::size_t i = 0; i < w.size(); i += std::max<std::size_t>(1, w.size() / 13)) {
      const double want = kLossScale * reference::derivative(of_w, w, i);
      ASSERT_NEAR(got.dw[i], want, allowed(s, want)) << "dw " << i << " rows " << s.rows;
    }
  }
}

// Many slices and vocabulary steps, against (softmax - onehot) w and (softmax - onehot)^T x in
// fp64.
void expect_gradients_right(const HeadShape& s) {
  const Batch in(s);
  const Result got = run(in, 2);
  const auto x = doubles(in.x), w = doubles(in.w);
  const auto lse = reference::head(s, x, w, in.targets).lse;
  const auto hidden = static_cast<std::size_t>(s.hidden);
  reference::Doubles dx(x.size()), dw(w.size());
  reference::Doubles dx_terms(x.size()), dw_terms(w.size());  // the sums of their terms' magnitudes
  for (std::size_t r = 0; r < lse.size(); ++r) {
    for (std::size_t v = 0; v < static_cast<std::size_t>(s.vocab); ++v) {
      double logit = 0.0;
      for (std::size_t h = 0; h < hidden; ++h) logit += x[r * hidden + h] * w[v * hidden + h];
      double grad = std::exp(logit - lse[r]);
      if (static_cast<std::size_t>(in.targets[r]) == v) grad -= 1.0;
      for (std::size_t h = 0; h < hidden; ++h) {
        const double of_x = kLossScale * grad * w[v * hidden + h];
        const double of_w = kLossScale * grad * x[r * hidden + h];
        dx[r * hidden + h] += of_x;
        dw[v * hidden + h] += of_w;
        dx_terms[r * hidden + h] += std::abs(of_x);
        dw_terms[v * hidden + h] += std::abs(of_w);
      }
    }
  }
  // Where gradients are rounded on the way, terms that cancel leave their roundings.
  const double rounding = s.dtype == DType::kF32 ? 0.0 : rounding_of(s.dtype);
  for (std::size_t i = 0; i < dx.size(); ++i) {
    ASSERT_NEAR(got.dx[i], dx[i], allowed(s, dx[i]) + rounding * dx_terms[i]) << i;
  }
  for (std::size_t i = 0; i < dw.size(); ++i) {
    ASSERT_NEAR(got.dw[i], dw[i], allowed(s, dw[i]) + rounding * dw_terms[i]) << i;
  }
}

TEST_P(HeadOf, GradientsMatchFp64OverManySlices) {
  for (HeadShape s : {kSliced, kColumns}) {
    s.dtype = GetParam();
    expect_gradients_right(s);
  }
}

TEST_P(HeadOf, BitsDoNotDependOnTheThreadCount) {
  for (HeadShape s : {kShapes[2], kShapes[3], kShapes[4], kSliced, kColumns}) {
    s.dtype = GetParam();
    const Batch in(s);
    const Result one = run(in, 1);
    EXPECT_TRUE(run(in, 2) == one);
    EXPECT_TRUE(run(in, 3) == one);
  }
}

TEST_P(HeadOf, EvaluationGivesTheLossOfTrainingToTheBit) {
  HeadShape s = kShapes[3];
  s.dtype = GetParam();
  const Batch in(s);
  const Result trained = run(in, 2);
  const Parallel parallel(2);
  const Gemm gemm(parallel, Bf16Gemm::kAuto);
  double loss = -1.0;
  DTypeArray lse(DType::kF32, s.rows);
  GuardedWorkspace workspace(head_workspace_bytes(gemm, s));
  head_forward(parallel, gemm, s, in.x.data(), in.w.data(), in.targets.data(), kLossScale, &loss,
               static_cast<float*>(lse.data()), nullptr, workspace.data());
  EXPECT_EQ(loss, trained.loss_sum);
  EXPECT_TRUE(lse == trained.lse);
}

TEST(Head, HoldsForLogitsInTheThousandsAndCarriesNan) {
  const HeadShape s{2, 1, 3, DType::kF32};
  Batch in(s);
  const float x[] = {1.0f, 1.0f}, w[] = {5000.0f, 4990.0f, -5000.0f};
  for (std::size_t i = 0; i < 2; ++i) in.x.set(i, x[i]);
  for (std::size_t i = 0; i < 3; ++i) in.w.set(i, w[i]);
  in.targets = {0, 1};
  const double tail = std::log1p(std::exp(-10.0));
  EXPECT_NEAR(run(in, 1).loss_sum, tail + 10.0 + tail, 1e-6);
  in.x.set(1, std::numeric_limits<float>::quiet_NaN());
  const Result got = run(in, 1);
  EXPECT_TRUE(std::isnan(got.loss_sum));
  EXPECT_FALSE(std::isnan(got.lse[0]));
  EXPECT_TRUE(std::isnan(got.dx[1]));
}

TEST(Head, RefusesATargetOutsideTheVocabulary) {
  for (const std::int32_t target : {-1, 63}) {
    Batch in({1, 17, 63, DType::kF32});
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
