#include "kernels/cuda/head.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/gemm_plain.hpp"
#include "tests/kernels/cuda/device_array.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;
using host::rounding_at;
using host::rounding_of;

constexpr float kLossScale = 0.125f;

struct Batch {
  HeadShape shape;
  kernels::host::DTypeArray x, w;
  std::vector<std::int32_t> targets;

  explicit Batch(const HeadShape& s)
      : shape(s),
        x(s.dtype, kernels::host::normal_floats(s.rows * s.hidden, 1)),
        w(s.dtype, kernels::host::normal_floats(s.vocab * s.hidden, 2, 0.3f)) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      targets.push_back(static_cast<std::int32_t>(r * 7919 % s.vocab));
    }
    targets.back() = static_cast<std::int32_t>(s.vocab - 1);
  }
};

struct Result {
  double loss_sum = -1.0;
  kernels::host::DTypeArray lse, dx, dw;
  bool operator==(const Result&) const = default;
};

// Several slices of rows and of the vocabulary, the last ones shorter.
constexpr HeadSlices kNarrow{.logits_bytes = 1, .least = 32};

Result run(const Batch& in, const HeadSlices& slices = kNarrow, bool train = true) {
  const auto gemm = make_plain_gemm();
  const HeadShape& s = in.shape;
  const DeviceDTypeArray x(in.x), w(in.w);
  const DeviceArray<std::int32_t> targets(in.targets);
  DeviceDTypeArray lse(DType::kF32, s.rows), dx(s.dtype, s.rows * s.hidden);
  DeviceDTypeArray dw(s.dtype, s.vocab * s.hidden);
  DeviceArray<double> loss_sum(1);
  const std::uint64_t bytes = head_workspace_bytes(*gemm, s, slices);
  {
    DeviceBytes workspace(bytes);
    head_forward(nullptr, *gemm, s, x.data(), w.data(), targets.data(), kLossScale, loss_sum.data(),
                 static_cast<float*>(lse.data()), train ? dx.data() : nullptr, workspace.data(),
                 slices);
  }
  if (train) {
    DeviceBytes workspace(bytes);
    head_backward_weight(nullptr, *gemm, s, x.data(), w.data(), targets.data(), kLossScale,
                         static_cast<const float*>(lse.data()), dw.data(), workspace.data(),
                         slices);
  }
  return {loss_sum.read()[0], lse.read(), dx.read(), dw.read()};
}

reference::Doubles doubles(const kernels::host::DTypeArray& array) {
  reference::Doubles values;
  for (std::size_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

// Of two results that are both rounded on the way.
double allowed(const HeadShape& s, double want) {
  const double gradient =
      4e-5 + (s.dtype == DType::kF32 ? 0 : 4 * kernels::host::rounding_of(s.dtype));
  return gradient * (std::abs(want) + 0.05 * static_cast<double>(kLossScale));
}

const HeadShape kShapes[] = {{1, 1, 1}, {1, 17, 63}, {17, 63, 257}, {70, 24, 130}, {20, 8, 600}};

class CudaHead : public CudaKernelTest, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaHead, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// A gradient in fp64 and how far a right one may be from it.
struct Bounded {
  reference::Doubles value, error;
  explicit Bounded(std::size_t size) : value(size), error(size) {}

  // A term of a sum: the gradient of a logit, which is rounded to the dtype, by a number.
  void add(std::size_t i, DType dtype, double gradient, double factor) {
    value[i] += gradient * factor;
    // The logit itself and its lse are right to some 1e-6.
    const double rounding =
        dtype == DType::kF32 ? 0.0 : kernels::host::rounding_at(dtype, gradient);
    error[i] += (rounding + 1e-5 * std::abs(gradient)) * std::abs(factor);
  }
  void expect(const HeadShape& s, const kernels::host::DTypeArray& got) const {
    for (std::size_t i = 0; i < value.size(); ++i) {
      ASSERT_NEAR(got[i], value[i], error[i] + kernels::host::rounding_at(s.dtype, value[i]) + 1e-8)
          << i << " of " << s.rows << " x " << s.hidden << " x " << s.vocab;
    }
  }
};

// loss and lse, (softmax - onehot) w and (softmax - onehot)^T x.
TEST_P(CudaHead, MatchesFp64) {
  for (HeadShape s : kShapes) {
    s.dtype = GetParam();
    const Batch in(s);
    const Result got = run(in);
    const auto x = doubles(in.x), w = doubles(in.w);
    const auto want = reference::head(s, x, w, in.targets);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 2e-6 * (1.0 + std::abs(want.loss_sum)));
    const auto hidden = static_cast<std::size_t>(s.hidden);
    Bounded dx(x.size()), dw(w.size());
    for (std::size_t r = 0; r < want.lse.size(); ++r) {
      ASSERT_NEAR(got.lse[r], want.lse[r], 2e-6 * (1.0 + std::abs(want.lse[r]))) << r;
      for (std::size_t v = 0; v < static_cast<std::size_t>(s.vocab); ++v) {
        double logit = 0.0;
        for (std::size_t h = 0; h < hidden; ++h) logit += x[r * hidden + h] * w[v * hidden + h];
        double grad = std::exp(logit - want.lse[r]);
        if (static_cast<std::size_t>(in.targets[r]) == v) grad -= 1.0;
        for (std::size_t h = 0; h < hidden; ++h) {
          dx.add(r * hidden + h, s.dtype, kLossScale * grad, w[v * hidden + h]);
          dw.add(v * hidden + h, s.dtype, kLossScale * grad, x[r * hidden + h]);
        }
      }
    }
    dx.expect(s, got.dx);
    dw.expect(s, got.dw);
  }
}

TEST_P(CudaHead, MatchesTheHost) {
  const HeadShape s{40, 24, 300, GetParam()};
  const Batch in(s);
  const Result got = run(in, HeadSlices());
  const auto kernels = make_host_kernels({.threads = 1});
  double loss = 0.0;
  kernels::host::DTypeArray lse(DType::kF32, s.rows), dx(s.dtype, s.rows * s.hidden);
  kernels::host::DTypeArray dw(s.dtype, s.vocab * s.hidden);
  std::vector<std::byte> memory(kernels->head_workspace_bytes(s) + 256);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  std::align(256, space - 256, workspace, space);
  auto* const lse_data = static_cast<float*>(lse.data());
  kernels->head_forward(s, in.x.data(), in.w.data(), in.targets.data(), kLossScale, &loss, lse_data,
                        dx.data(), workspace);
  kernels->head_backward_weight(s, in.x.data(), in.w.data(), in.targets.data(), kLossScale,
                                lse_data, dw.data(), workspace);
  EXPECT_NEAR(got.loss_sum, loss, 2e-6 * std::abs(loss));
  for (std::size_t i = 0; i < dx.size(); ++i) {
    ASSERT_NEAR(got.dx[i], dx[i], allowed(s, dx[i])) << i;
  }
  for (std::size_t i = 0; i < dw.size(); ++i) {
    ASSERT_NEAR(got.dw[i], dw[i], allowed(s, dw[i])) << i;
  }
}

// The plain product's sums do not depend on the slice, and so nothing does.
TEST_P(CudaHead, BitsDoNotDependOnTheSliceOrTheRun) {
  HeadShape s = kShapes[3];
  s.dtype = GetParam();
  const Batch in(s);
  const Result one = run(in);
  EXPECT_TRUE(run(in) == one);
  EXPECT_TRUE(run(in, HeadSlices()) == one);
}

TEST_P(CudaHead, EvaluationGivesTheLossOfTrainingToTheBit) {
  HeadShape s = kShapes[3];
  s.dtype = GetParam();
  const Batch in(s);
  const Result trained = run(in), evaluated = run(in, kNarrow, false);
  EXPECT_EQ(evaluated.loss_sum, trained.loss_sum);
  EXPECT_TRUE(evaluated.lse == trained.lse);
  EXPECT_FALSE(evaluated.dx == trained.dx);
}

using CudaHeadEdges = CudaKernelTest;

TEST_F(CudaHeadEdges, HoldsForLogitsInTheThousandsAndCarriesNan) {
  const HeadShape s{2, 1, 3, DType::kF32};
  Batch in(s);
  const float x[] = {1.0f, 1.0f}, w[] = {5000.0f, 4990.0f, -5000.0f};
  for (std::size_t i = 0; i < 2; ++i) in.x.set(i, x[i]);
  for (std::size_t i = 0; i < 3; ++i) in.w.set(i, w[i]);
  in.targets = {0, 1};
  const double tail = std::log1p(std::exp(-10.0));
  EXPECT_NEAR(run(in).loss_sum, tail + 10.0 + tail, 1e-6);
  in.x.set(1, std::numeric_limits<float>::quiet_NaN());
  const Result got = run(in);
  EXPECT_TRUE(std::isnan(got.loss_sum));
  EXPECT_FALSE(std::isnan(got.lse[0]));
  EXPECT_TRUE(std::isnan(got.dx[1]));
  EXPECT_FALSE(std::isnan(got.dx[0]));
}

TEST_F(CudaHeadEdges, ATargetOutsideTheVocabularyMakesItsRowNan) {
  for (const std::int32_t target : {-1, 63}) {
    Batch in({3, 17, 63, DType::kF32});
    in.targets[1] = target;
    const Result got = run(in);
    EXPECT_TRUE(std::isnan(got.loss_sum));
    for (std::size_t i = 0; i < 3 * 17; ++i) {
      EXPECT_EQ(std::isnan(got.dx[i]), i / 17 == 1) << i;
    }
  }
}

TEST_F(CudaHeadEdges, NeverHoldsAllLogits) {
  const auto gemm = make_plain_gemm();
  const HeadShape s{65536, 768, 50257, DType::kBF16};
  // 128 MiB of logits, half as much of gradients, a fp64 number per row; rows are padded a little.
  EXPECT_LE(head_workspace_bytes(*gemm, s), 193ull * kMiB);
  EXPECT_THROW(head_workspace_bytes(*gemm, {0, 1, 1, DType::kF32}), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
