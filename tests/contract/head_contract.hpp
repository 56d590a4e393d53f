// The language-model head, as every implementation of Kernels computes it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

using kernels::HeadShape;

inline constexpr float kHeadLossScale = 0.125f;

struct HeadBatch {
  HeadShape shape;
  DTypeArray x, w;
  std::vector<std::int32_t> targets;

  explicit HeadBatch(const HeadShape& s)
      : shape(s),
        x(s.dtype, normal_floats(s.rows * s.hidden, 1)),
        w(s.dtype, normal_floats(s.vocab * s.hidden, 2, 0.3f)) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      targets.push_back(static_cast<std::int32_t>(r * 7919 % s.vocab));
    }
    targets.back() = static_cast<std::int32_t>(s.vocab - 1);
  }
};

struct HeadResult {
  double loss_sum = -1.0;
  DTypeArray lse, dx, dw;
  bool operator==(const HeadResult&) const = default;
};

// train: gradients, too; else dx and dw stay unwritten.
template <class Backend>
HeadResult run_head(Kernels& kernels, const HeadBatch& in, bool train = true) {
  const HeadShape& s = in.shape;
  BackendArray<Backend> x(in.x), w(in.w), lse(DType::kF32, s.rows);
  BackendArray<Backend> dx(s.dtype, s.rows * s.hidden), dw(s.dtype, s.vocab * s.hidden);
  typename Backend::Memory targets(in.targets.size() * sizeof(std::int32_t)), loss(sizeof(double));
  Backend::copy(targets.data(), in.targets.data(), in.targets.size() * sizeof(std::int32_t));
  const auto* const target_data = static_cast<const std::int32_t*>(targets.data());
  const std::uint64_t bytes = kernels.head_workspace_bytes(s);
  {
    typename Backend::Memory workspace(bytes);
    kernels.head_forward(s, x.data(), w.data(), target_data, kHeadLossScale,
                         static_cast<double*>(loss.data()), lse.floats(),
                         train ? dx.data() : nullptr, workspace.data());
  }
  if (train) {
    typename Backend::Memory workspace(bytes);
    kernels.head_backward_weight(s, x.data(), w.data(), target_data, kHeadLossScale, lse.floats(),
                                 dw.data(), workspace.data());
  }
  HeadResult result{-1.0, lse.read(), dx.read(), dw.read()};
  Backend::copy(&result.loss_sum, loss.data(), sizeof(double));
  return result;
}

// A gradient in fp64, and the distance from it that a right result may have.
struct BoundedGradient {
  reference::Doubles value, error;
  explicit BoundedGradient(std::size_t size) : value(size), error(size) {}

  // A term of a sum: the gradient of a logit, which may be rounded to the dtype, by a number.
  void add(std::size_t i, DType dtype, double gradient, double factor) {
    value[i] += gradient * factor;
    // The logit itself and its lse are right to some 1e-6.
    const double rounding = dtype == DType::kF32 ? 0.0 : rounding_at(dtype, gradient);
    error[i] += (rounding + 1e-5 * std::abs(gradient)) * std::abs(factor);
  }
  void expect(const HeadShape& s, const DTypeArray& got) const {
    for (std::size_t i = 0; i < value.size(); ++i) {
      ASSERT_NEAR(got[i], value[i], error[i] + rounding_at(s.dtype, value[i]) + 1e-8)
          << i << " of " << s.rows << " x " << s.hidden << " x " << s.vocab;
    }
  }
};

// loss and lse, (softmax - onehot) w and (softmax - onehot)^T x.
inline void expect_head(const HeadBatch& in, const HeadResult& got) {
  const HeadShape& s = in.shape;
  const auto x = doubles(in.x), w = doubles(in.w);
  const auto want = reference::head(s, x, w, in.targets);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 2e-6 * (1.0 + std::abs(want.loss_sum)));
  const auto hidden = static_cast<std::size_t>(s.hidden);
  BoundedGradient dx(x.size()), dw(w.size());
  for (std::size_t r = 0; r < want.lse.size(); ++r) {
    ASSERT_NEAR(got.lse[r], want.lse[r], 2e-6 * (1.0 + std::abs(want.lse[r]))) << r;
    for (std::size_t v = 0; v < static_cast<std::size_t>(s.vocab); ++v) {
      double logit = 0.0;
      for (std::size_t h = 0; h < hidden; ++h) logit += x[r * hidden + h] * w[v * hidden + h];
      double grad = std::exp(logit - want.lse[r]);
      if (static_cast<std::size_t>(in.targets[r]) == v) grad -= 1.0;
      for (std::size_t h = 0; h < hidden; ++h) {
        dx.add(r * hidden + h, s.dtype, kHeadLossScale * grad, w[v * hidden + h]);
        dw.add(v * hidden + h, s.dtype, kHeadLossScale * grad, x[r * hidden + h]);
      }
    }
  }
  dx.expect(s, got.dx);
  dw.expect(s, got.dw);
}

inline const HeadShape kHeadShapes[] = {{1, 1, 1},     {1, 17, 63},  {17, 63, 257},
                                        {70, 24, 130}, {20, 8, 600}, {40, 24, 300}};
// The host cuts these into slices of rows and of the vocabulary, the last ones shorter.
inline const HeadShape kSlicedHeads[] = {
    {130, 24, 1000}, {20, 8, 512}, {130, 5, 20000}, {1000, 3, 1501}};

template <class Backend>
std::vector<HeadShape> head_shapes(DType dtype) {
  std::vector<HeadShape> shapes(std::begin(kHeadShapes), std::end(kHeadShapes));
  if (!Backend::kSlow) {
    shapes.insert(shapes.end(), std::begin(kSlicedHeads), std::end(kSlicedHeads));
  }
  for (HeadShape& shape : shapes) shape.dtype = dtype;
  return shapes;
}

template <class Backend>
class HeadContract : public KernelsContract<Backend> {};
TYPED_TEST_SUITE_P(HeadContract);

TYPED_TEST_P(HeadContract, MatchesFp64) {
  for (const DType dtype : kActDTypes) {
    for (const HeadShape& shape : head_shapes<TypeParam>(dtype)) {
      const HeadBatch in(shape);
      expect_head(in, run_head<TypeParam>(this->kernels(), in));
    }
  }
}

TYPED_TEST_P(HeadContract, GivesTheSameBitsInEveryRun) {
  for (const DType dtype : kActDTypes) {
    const HeadBatch in({70, 24, 130, dtype});
    EXPECT_TRUE(run_head<TypeParam>(this->kernels(), in) ==
                run_head<TypeParam>(this->kernels(), in));
  }
}

TYPED_TEST_P(HeadContract, EvaluationGivesTheLossOfTrainingToTheBit) {
  for (const DType dtype : kActDTypes) {
    const HeadBatch in({70, 24, 1000, dtype});
    const HeadResult trained = run_head<TypeParam>(this->kernels(), in);
    const HeadResult evaluated = run_head<TypeParam>(this->kernels(), in, false);
    EXPECT_EQ(evaluated.loss_sum, trained.loss_sum);
    EXPECT_TRUE(evaluated.lse == trained.lse);
    EXPECT_TRUE(evaluated.dx == BackendArray<TypeParam>(dtype, 70 * 24).read());  // untouched
  }
}

TYPED_TEST_P(HeadContract, HoldsForLogitsInTheThousandsAndCarriesNan) {
  HeadBatch in({2, 1, 3, DType::kF32});
  const float x[] = {1.0f, 1.0f}, w[] = {5000.0f, 4990.0f, -5000.0f};
  for (std::size_t i = 0; i < 2; ++i) in.x.set(i, x[i]);
  for (std::size_t i = 0; i < 3; ++i) in.w.set(i, w[i]);
  in.targets = {0, 1};
  const double tail = std::log1p(std::exp(-10.0));
  EXPECT_NEAR(run_head<TypeParam>(this->kernels(), in).loss_sum, tail + 10.0 + tail, 1e-6);
  in.x.set(1, std::numeric_limits<float>::quiet_NaN());
  const HeadResult got = run_head<TypeParam>(this->kernels(), in);
  EXPECT_TRUE(std::isnan(got.loss_sum));
  EXPECT_FALSE(std::isnan(got.lse[0]));
  EXPECT_TRUE(std::isnan(got.dx[1]));
  EXPECT_FALSE(std::isnan(got.dx[0]));
}

// The head of ranks that have the tokens [0, first) and [first, vocab), whose statistics the test
// combines. fp32, where the sum of both parts of dx has no more rounding than a whole one.
template <class Backend>
class HeadOfRanks {
 public:
  HeadOfRanks(Kernels& kernels, const HeadBatch& in, std::int64_t first)
      : kernels_(kernels),
        in_(in),
        x_(in.x),
        targets_(in.targets),
        bounds_{0, first, in.shape.vocab} {}

  HeadResult run() {
    const HeadShape& s = in_.shape;
    std::vector<std::array<DTypeArray, 4>> parts;
    for (std::size_t part = 0; part < 2; ++part) parts.push_back(statistics_of(part));
    DTypeArray max(DType::kF32, s.rows), sum = max, target = max;
    for (std::size_t r = 0; r < max.size(); ++r) {
      max.set(r, std::max(parts[0][1][r], parts[1][1][r]));
    }
    for (auto& part : parts) part[2] = rescaled(part, max);
    for (std::size_t r = 0; r < max.size(); ++r) {
      sum.set(r, parts[0][2][r] + parts[1][2][r]);
      target.set(r, parts[0][3][r] + parts[1][3][r]);
    }
    return gradients(loss_of({max, max, sum, target}));
  }

 private:
  HeadShape shape(std::size_t part) const {
    HeadShape s = in_.shape;
    s.first_token = bounds_[part];
    s.vocab = bounds_[part + 1] - bounds_[part];
    return s;
  }
  BackendArray<Backend> weights(std::size_t part) const {
    const HeadShape s = shape(part);
    std::vector<float> values;
    for (std::int64_t i = 0; i < s.vocab * s.hidden; ++i) {
      values.push_back(in_.w[static_cast<std::size_t>(s.first_token * s.hidden + i)]);
    }
    return BackendArray<Backend>(DTypeArray(s.dtype, values));
  }
  std::array<DTypeArray, 4> statistics_of(std::size_t part) {
    const HeadShape s = shape(part);
    const BackendArray<Backend> w = weights(part);
    BackendArray<Backend> own(DType::kF32, s.rows), max(DType::kF32, s.rows);
    BackendArray<Backend> sum(DType::kF32, s.rows), target(DType::kF32, s.rows);
    typename Backend::Memory workspace(kernels_.head_workspace_bytes(s));
    kernels_.head_statistics(s, x_.data(), w.data(), targets_.data(),
                             {own.floats(), max.floats(), sum.floats(), target.floats()},
                             workspace.data());
    return {own.read(), max.read(), sum.read(), target.read()};
  }
  DTypeArray rescaled(const std::array<DTypeArray, 4>& part, const DTypeArray& of_all) {
    BackendArray<Backend> own(part[0]), max(of_all), sum(part[2]);
    kernels_.head_rescale(in_.shape.rows, {own.floats(), max.floats(), sum.floats(), nullptr});
    return sum.read();
  }
  HeadResult loss_of(const std::array<DTypeArray, 4>& whole) {
    const HeadShape& s = in_.shape;
    BackendArray<Backend> own(whole[0]), max(whole[1]), sum(whole[2]), target(whole[3]);
    BackendArray<Backend> lse(DType::kF32, s.rows);
    BackendNumbers<Backend, double> loss(std::vector<double>(1));
    kernels_.head_loss(s.rows, {own.floats(), max.floats(), sum.floats(), target.floats()},
                       loss.data(), lse.floats());
    return {loss.read()[0], lse.read(), DTypeArray(s.dtype, s.rows * s.hidden),
            DTypeArray(s.dtype, s.vocab * s.hidden)};
  }
  HeadResult gradients(HeadResult result) {
    BackendArray<Backend> lse(result.lse);
    for (std::size_t part = 0; part < 2; ++part) {
      const HeadShape s = shape(part);
      const BackendArray<Backend> w = weights(part);
      BackendArray<Backend> dx(s.dtype, s.rows * s.hidden), dw(s.dtype, s.vocab * s.hidden);
      typename Backend::Memory workspace(kernels_.head_workspace_bytes(s));
      kernels_.head_input_gradient(s, x_.data(), w.data(), targets_.data(), kHeadLossScale,
                                   lse.floats(), dx.data(), workspace.data());
      kernels_.head_backward_weight(s, x_.data(), w.data(), targets_.data(), kHeadLossScale,
                                    lse.floats(), dw.data(), workspace.data());
      const DTypeArray own_dx = dx.read(), own_dw = dw.read();
      for (std::size_t i = 0; i < own_dx.size(); ++i) {
        result.dx.set(i, part == 0 ? own_dx[i] : result.dx[i] + own_dx[i]);
      }
      for (std::size_t i = 0; i < own_dw.size(); ++i) {
        result.dw.set(static_cast<std::size_t>(s.first_token * s.hidden) + i, own_dw[i]);
      }
    }
    return result;
  }

  Kernels& kernels_;
  const HeadBatch& in_;
  BackendArray<Backend> x_;
  BackendNumbers<Backend, std::int32_t> targets_;
  const std::array<std::int64_t, 3> bounds_;
};

TYPED_TEST_P(HeadContract, PartsOfTheVocabularyMatchFp64) {
  for (const HeadShape& shape : head_shapes<TypeParam>(DType::kF32)) {
    if (shape.vocab == 1) continue;
    const HeadBatch in(shape);
    for (const std::int64_t first : {std::int64_t{1}, shape.vocab / 3 + 1}) {
      expect_head(in, HeadOfRanks<TypeParam>(this->kernels(), in, first).run());
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(HeadContract, MatchesFp64, GivesTheSameBitsInEveryRun,
                            EvaluationGivesTheLossOfTrainingToTheBit,
                            HoldsForLogitsInTheThousandsAndCarriesNan,
                            PartsOfTheVocabularyMatchFp64);

}  // namespace sluice::testing
