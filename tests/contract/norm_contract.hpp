// LayerNorm and RMSNorm, as every implementation of Kernels computes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

using kernels::NormShape;

// A norm with its inputs, and its statistics in fp64. Means are far from zero: sums of squares must
// not cancel.
struct NormBatch {
  NormShape shape;
  DTypeArray x, dy, weight, bias, residual;
  reference::Doubles mean, rstd, xhat;

  explicit NormBatch(const NormShape& s)
      : shape(s),
        x(s.dtype, normal_floats(s.rows * s.cols, 1, 2.0f)),
        dy(s.dtype, normal_floats(s.rows * s.cols, 2)),
        weight(s.dtype, normal_floats(s.cols, 3)),
        bias(s.dtype, normal_floats(s.cols, 4)),
        residual(s.dtype, normal_floats(s.rows * s.cols, 5)) {
    for (std::size_t i = 0; i < x.size(); ++i) x.set(i, x[i] + 4.0f);
    if (s.rms) bias = DTypeArray(s.dtype, std::vector<float>(cols()));
    find_statistics(doubles(x));
  }
  std::size_t cols() const { return static_cast<std::size_t>(shape.cols); }
  // Finds the statistics of another x.
  void find_statistics(const reference::Doubles& from) {
    mean.clear();
    rstd.clear();
    xhat.clear();
    const auto count = static_cast<double>(shape.cols);
    for (std::size_t row = 0; row < from.size(); row += cols()) {
      double sum = 0.0, squares = 0.0;
      for (std::size_t c = 0; c < cols(); ++c) sum += from[row + c];
      mean.push_back(shape.rms ? 0.0 : sum / count);
      for (std::size_t c = 0; c < cols(); ++c) squares += std::pow(from[row + c] - mean.back(), 2);
      rstd.push_back(1.0 / std::sqrt(squares / count + static_cast<double>(shape.epsilon)));
      for (std::size_t c = 0; c < cols(); ++c) {
        xhat.push_back((from[row + c] - mean.back()) * rstd.back());
      }
    }
  }
  reference::Doubles y() const {
    reference::Doubles values;
    for (std::size_t i = 0; i < xhat.size(); ++i) {
      values.push_back(xhat[i] * double{weight[i % cols()]} + double{bias[i % cols()]});
    }
    return values;
  }
  // rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight; rms omits mean(g).
  reference::Doubles dx() const {
    reference::Doubles values;
    for (std::size_t row = 0; row < xhat.size(); row += cols()) {
      double mean_g = 0.0, mean_g_xhat = 0.0;
      const auto g = [&](std::size_t c) { return double{dy[row + c]} * double{weight[c]}; };
      for (std::size_t c = 0; c < cols(); ++c) {
        mean_g += shape.rms ? 0.0 : g(c) / static_cast<double>(shape.cols);
        mean_g_xhat += g(c) * xhat[row + c] / static_cast<double>(shape.cols);
      }
      for (std::size_t c = 0; c < cols(); ++c) {
        values.push_back(rstd[row / cols()] * (g(c) - mean_g - xhat[row + c] * mean_g_xhat));
      }
    }
    return values;
  }
  DTypeArray means() const { return {DType::kF32, {mean.begin(), mean.end()}}; }
  DTypeArray rstds() const { return {DType::kF32, {rstd.begin(), rstd.end()}}; }

  double allowed(double want) const {
    return rounding_of(shape.dtype) * std::abs(want) + 4e-6 * (1.0 + std::abs(want));
  }
  std::string name() const {
    return std::to_string(shape.rows) + " x " + std::to_string(shape.cols) +
           (shape.rms ? " rms " : " layer ") + std::string(dtype_name(shape.dtype));
  }
};

inline DTypeArray widened(const DTypeArray& narrow) {
  std::vector<float> values;
  for (std::size_t i = 0; i < narrow.size(); ++i) values.push_back(narrow[i]);
  return {DType::kF32, values};
}

struct NormForward {
  DTypeArray y, mean, rstd;
  bool operator==(const NormForward&) const = default;
};
struct NormWeights {
  DTypeArray dweight, dbias;
  bool operator==(const NormWeights&) const = default;
};

inline constexpr float kUnwrittenMean = 0.25f;

template <class Backend>
NormForward norm_forward(const Variation& at, const NormBatch& in) {
  const NormShape& s = in.shape;
  BackendArray<Backend> x(in.x, at.offset), weight(in.weight), bias(in.bias);
  BackendArray<Backend> y(s.dtype, s.rows * s.cols), rstd(DType::kF32, s.rows);
  BackendArray<Backend> mean(DTypeArray(
      DType::kF32, std::vector<float>(static_cast<std::size_t>(s.rows), kUnwrittenMean)));
  const bool no_mean = s.rms && s.cols % 2 == 1;  // it may be null
  at.kernels.norm_forward(s, x.data(), weight.data(), s.rms ? nullptr : bias.data(), y.data(),
                          no_mean ? nullptr : mean.floats(), rstd.floats());
  return {y.read(), mean.read(), rstd.read()};
}

template <class Backend>
DTypeArray norm_backward_input(const Variation& at, const NormBatch& in, bool with_residual) {
  const NormShape& s = in.shape;
  BackendArray<Backend> dy(in.dy, at.offset), x(in.x), weight(in.weight), residual(in.residual);
  BackendArray<Backend> mean(in.means()), rstd(in.rstds()), dx(s.dtype, s.rows * s.cols);
  at.kernels.norm_backward_input(s, dy.data(), x.data(), weight.data(),
                                 s.rms ? nullptr : mean.floats(), rstd.floats(),
                                 with_residual ? residual.data() : nullptr, dx.data());
  return dx.read();
}

template <class Backend>
NormWeights norm_backward_weight(const Variation& at, const NormBatch& in) {
  const NormShape& s = in.shape;
  BackendArray<Backend> dy(in.dy), x(in.x), mean(in.means()), rstd(in.rstds());
  BackendArray<Backend> dweight(s.dtype, s.cols);
  BackendArray<Backend> dbias(DTypeArray(s.dtype, std::vector<float>(in.cols(), 3.0f)));
  at.kernels.norm_backward_weight(s, dy.data(), x.data(), s.rms ? nullptr : mean.floats(),
                                  rstd.floats(), dweight.data(), s.rms ? nullptr : dbias.data());
  return {dweight.read(), dbias.read()};
}

template <class Backend>
class NormContract : public KernelsContract<Backend> {
 protected:
  // For both norms of every dtype.
  template <class Check>
  static void for_each_norm(const std::vector<std::pair<std::int64_t, std::int64_t>>& sizes,
                            const Check& check) {
    for (const auto& [rows, cols] : sizes) {
      for (const DType dtype : kActDTypes) {
        for (const bool rms : {false, true}) {
          const NormBatch in({rows, cols, rms, 1e-5f, dtype});
          SCOPED_TRACE(in.name());
          check(in);
        }
      }
    }
  }
  // Vectors with ragged ends, rows of one warp and of several, that do not divide into packs, and
  // longer than 1,024 threads hold.
  static inline const std::vector<std::pair<std::int64_t, std::int64_t>> kSizes = {
      {0, 64}, {37, 1}, {5, 2},   {37, 5},  {5, 16},   {5, 33},   {5, 48},   {37, 67},
      {5, 96}, {3, 97}, {7, 130}, {7, 768}, {7, 1001}, {2, 2500}, {1, 5001}, {2, 33000}};
};
TYPED_TEST_SUITE_P(NormContract);

TYPED_TEST_P(NormContract, ForwardIsTheFp64ReferenceRoundedOnce) {
  this->for_each_norm(this->kSizes, [&](const NormBatch& in) {
    this->everywhere([&](const Variation& at) { return norm_forward<TypeParam>(at, in); },
                     [&](const NormForward& got) {
                       expect_near(
                           got.y, in.y(), [&](double want) { return in.allowed(want); }, "y");
                       const reference::Doubles unwritten(in.mean.size(), double{kUnwrittenMean});
                       const auto statistic = [](double want) {
                         return 1e-6 * std::max(1.0, std::abs(want) / 4.0);
                       };
                       expect_near(got.mean, in.shape.rms ? unwritten : in.mean, statistic, "mean");
                       expect_near(got.rstd, in.rstd, statistic, "rstd");
                     });
  });
}

// Central differences of sum(dy y) in fp64.
TYPED_TEST_P(NormContract, ReferenceGradientIsTheSlope) {
  this->for_each_norm({{2, 5}}, [&](const NormBatch& in) {
    const auto loss = [&](const reference::Doubles& x) {
      NormBatch moved = in;
      moved.find_statistics(x);
      const reference::Doubles y = moved.y();
      double sum = 0.0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * double{in.dy[i]};
      return sum;
    };
    const reference::Doubles dx = in.dx();
    for (std::size_t i = 0; i < dx.size(); ++i) {
      EXPECT_NEAR(dx[i], reference::derivative(loss, doubles(in.x), i), 1e-8);
    }
  });
}

// The fp32 gradient of the same numbers, the residual added, rounded: to the bit where row sums
// have one order in every dtype.
TYPED_TEST_P(NormContract, InputGradientTakesTheResidualBeforeRoundingToTheBit) {
  if (!TypeParam::kOneSumOrder) GTEST_SKIP() << "sums follow the elements of a pack";
  this->for_each_norm({{7, 130}}, [&](const NormBatch& in) {
    NormBatch wide = in;
    wide.shape.dtype = DType::kF32;
    for (DTypeArray* array : {&wide.x, &wide.dy, &wide.weight}) *array = widened(*array);
    const DTypeArray alone = norm_backward_input<TypeParam>({this->kernels(), 0, ""}, wide, false);
    DTypeArray want(in.shape.dtype, 7 * 130);
    for (std::size_t i = 0; i < want.size(); ++i) want.set(i, alone[i] + in.residual[i]);
    this->everywhere(
        [&](const Variation& at) { return norm_backward_input<TypeParam>(at, in, true); },
        [&](const DTypeArray& got) { EXPECT_TRUE(got == want); });
  });
}

TYPED_TEST_P(NormContract, InputGradientTakesTheResidualBeforeItRoundsOnce) {
  this->for_each_norm(this->kSizes, [&](const NormBatch& in) {
    for (const bool with_residual : {false, true}) {
      reference::Doubles want = in.dx();
      for (std::size_t i = 0; with_residual && i < want.size(); ++i) want[i] += in.residual[i];
      // With one or two columns the terms nearly cancel: rounding of terms like g is left.
      const double least = in.shape.cols > 2 || in.rstd.empty()
                               ? 0.0
                               : 4e-5 * *std::max_element(in.rstd.begin(), in.rstd.end());
      this->everywhere(
          [&](const Variation& at) {
            return norm_backward_input<TypeParam>(at, in, with_residual);
          },
          [&](const DTypeArray& got) {
            expect_near(
                got, want, [&](double at) { return in.allowed(at) + least; }, "dx");
          });
    }
  });
}

TYPED_TEST_P(NormContract, WeightGradientsAreTheFp64Sums) {
  this->for_each_norm(
      {{0, 24}, {3, 8}, {150, 1}, {150, 21}, {150, 140}, {700, 40}, {1500, 33}},
      [&](const NormBatch& in) {
        reference::Doubles dweight(in.cols()), dbias(in.cols(), in.shape.rms ? 3.0 : 0.0);
        for (std::size_t i = 0; i < in.xhat.size(); ++i) {
          dweight[i % in.cols()] += double{in.dy[i]} * in.xhat[i];
          if (!in.shape.rms) dbias[i % in.cols()] += double{in.dy[i]};
        }
        const double sums = 2e-5 * std::max(1.0, static_cast<double>(in.shape.rows) / 150.0);
        const auto allowed = [&](double want) { return in.allowed(want) + sums; };
        this->everywhere(
            [&](const Variation& at) { return norm_backward_weight<TypeParam>(at, in); },
            [&](const NormWeights& got) {
              expect_near(got.dweight, dweight, allowed, "dweight");
              expect_near(got.dbias, dbias, allowed, "dbias");
            });
      });
}

// A large mean on small differences: one pass over x^2 would lose the variance altogether.
TYPED_TEST_P(NormContract, KeepsTheVarianceOfNumbersFarFromZero) {
  NormBatch in({1, 64, false, 1e-5f, DType::kF32});
  for (std::size_t c = 0; c < 64; ++c) in.x.set(c, 4096.0f + static_cast<float>(c % 2));
  const NormForward got = norm_forward<TypeParam>({this->kernels(), 0, ""}, in);
  EXPECT_NEAR(got.rstd[0], 1.0 / std::sqrt(0.25 + 1e-5), 1e-5);
}

TYPED_TEST_P(NormContract, LeavesANanInItsOwnRow) {
  for (const std::int64_t cols : {20, 64}) {
    this->for_each_norm({{3, cols}}, [&](NormBatch in) {
      in.x.set(in.cols() + 5, std::numeric_limits<float>::quiet_NaN());
      const NormForward got = norm_forward<TypeParam>({this->kernels(), 0, ""}, in);
      for (std::size_t i = 0; i < got.y.size(); ++i) {
        EXPECT_EQ(std::isnan(got.y[i]), i / in.cols() == 1) << i;
      }
    });
  }
}

TYPED_TEST_P(NormContract, RefusesOtherTypesAndMissingMeans) {
  float any[4] = {};
  NormShape shape{1, 4, false, 1e-5f, DType::kF32};
  Kernels& kernels = this->kernels();
  EXPECT_THROW(kernels.norm_forward(shape, any, any, nullptr, any, nullptr, any), InternalError);
  EXPECT_THROW(kernels.norm_backward_input(shape, any, any, any, nullptr, any, nullptr, any),
               InternalError);
  shape.dtype = DType::kI32;
  EXPECT_THROW(kernels.norm_forward(shape, any, any, nullptr, any, any, any), InternalError);
}

REGISTER_TYPED_TEST_SUITE_P(NormContract, ForwardIsTheFp64ReferenceRoundedOnce,
                            ReferenceGradientIsTheSlope,
                            InputGradientTakesTheResidualBeforeRoundingToTheBit,
                            InputGradientTakesTheResidualBeforeItRoundsOnce,
                            WeightGradientsAreTheFp64Sums, KeepsTheVarianceOfNumbersFarFromZero,
                            LeavesANanInItsOwnRow, RefusesOtherTypesAndMissingMeans);

}  // namespace sluice::testing
