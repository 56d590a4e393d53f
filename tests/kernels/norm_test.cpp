#include "kernels/host/norm.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::host {
namespace {

using Doubles = std::vector<double>;

Doubles doubles_of(const DTypeArray& array) {
  Doubles values(array.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = array[i];
  return values;
}

// y = norm(x) weight + bias in fp64.
Doubles reference(const NormShape& shape, const Doubles& x, const Doubles& weight,
                  const Doubles& bias) {
  const auto cols = static_cast<std::size_t>(shape.cols);
  Doubles y(x.size());
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
    const double* const from = x.data() + row * cols;
    double mean = 0.0, variance = 0.0;
    for (std::size_t c = 0; c < cols; ++c) mean += from[c] / static_cast<double>(cols);
    if (shape.rms) mean = 0.0;
    for (std::size_t c = 0; c < cols; ++c) {
      variance += (from[c] - mean) * (from[c] - mean) / static_cast<double>(cols);
    }
    const double rstd = 1.0 / std::sqrt(variance + static_cast<double>(shape.epsilon));
    for (std::size_t c = 0; c < cols; ++c) {
      y[row * cols + c] = (from[c] - mean) * rstd * weight[c] + bias[c];
    }
  }
  return y;
}

struct Variant {
  DType dtype;
  bool rms;
};

// A norm with its inputs, and the statistics that the forward pass left.
struct Case {
  NormShape shape;
  DTypeArray x, weight, bias, dy;
  std::vector<float> mean, rstd;

  Case(Variant variant, std::int64_t rows, std::int64_t cols)
      : shape{rows, cols, variant.rms, 1e-5f, variant.dtype},
        x(variant.dtype, normal_floats(rows * cols, 1)),
        weight(variant.dtype, normal_floats(cols, 2)),
        bias(variant.dtype, normal_floats(cols, 3)),
        dy(variant.dtype, normal_floats(rows * cols, 4)),
        mean(static_cast<std::size_t>(rows)),
        rstd(static_cast<std::size_t>(rows)) {
    if (variant.rms) bias = DTypeArray(variant.dtype, std::vector<float>(bias.size()));
  }

  DTypeArray forward(const Parallel& parallel) {
    DTypeArray y(shape.dtype, shape.rows * shape.cols);
    norm_forward(parallel, shape, x.data(), weight.data(), shape.rms ? nullptr : bias.data(),
                 y.data(), shape.rms ? nullptr : mean.data(), rstd.data());
    return y;
  }
  DTypeArray backward_input(const Parallel& parallel, const void* residual) const {
    DTypeArray dx(shape.dtype, shape.rows * shape.cols);
    norm_backward_input(parallel, shape, dy.data(), x.data(), weight.data(),
                        shape.rms ? nullptr : mean.data(), rstd.data(), residual, dx.data());
    return dx;
  }

  // sum(dy * y): its derivatives are the gradients that a backward pass gives.
  double loss(const Doubles& at_x, const Doubles& at_weight, const Doubles& at_bias) const {
    const Doubles y = reference(shape, at_x, at_weight, at_bias);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(dy[i]);
    return sum;
  }
};

// The central difference of `loss` along element i of `values`.
template <class Loss>
double slope_at(Doubles& values, std::size_t i, const Loss& loss) {
  constexpr double kStep = 1e-4;
  const double middle = values[i];
  values[i] = middle + kStep;
  const double above = loss();
  values[i] = middle - kStep;
  const double below = loss();
  values[i] = middle;
  return (above - below) / (2.0 * kStep);
}

class NormOf : public ::testing::TestWithParam<Variant> {
 protected:
  double tolerance(double want) const {
    return rounding_of(GetParam().dtype) * std::abs(want) + 4e-6 * (1.0 + std::abs(want));
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, NormOf,
                         ::testing::Values(Variant{DType::kF32, false}, Variant{DType::kF32, true},
                                           Variant{DType::kBF16, false},
                                           Variant{DType::kBF16, true}, Variant{DType::kF16, false},
                                           Variant{DType::kF16, true}),
                         [](const auto& variant) {
                           return std::string(variant.param.rms ? "Rms" : "Layer") +
                                  std::string(dtype_name(variant.param.dtype));
                         });

TEST_P(NormOf, ForwardIsTheFp64ReferenceRoundedOnce) {
  for (const std::int64_t cols : {1, 5, 16, 67, 768, 1001}) {
    Case at(GetParam(), 37, cols);
    const DTypeArray y =
        same_bits_everywhere([&](const Parallel& parallel) { return at.forward(parallel); });
    const Doubles want =
        reference(at.shape, doubles_of(at.x), doubles_of(at.weight), doubles_of(at.bias));
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(y[i], want[i], tolerance(want[i])) << i << " of " << cols << " columns";
    }
  }
}

TEST_P(NormOf, StatisticsAreTheRows) {
  Case at(GetParam(), 3, 100);
  at.forward(Parallel(1));
  for (std::size_t row = 0; row < 3; ++row) {
    double mean = 0.0, squares = 0.0;
    for (std::size_t c = 0; c < 100; ++c) mean += static_cast<double>(at.x[row * 100 + c]) / 100.0;
    if (GetParam().rms) mean = 0.0;
    for (std::size_t c = 0; c < 100; ++c) {
      squares += std::pow(static_cast<double>(at.x[row * 100 + c]) - mean, 2) / 100.0;
    }
    EXPECT_NEAR(at.mean[row], mean, 1e-6);
    EXPECT_NEAR(at.rstd[row], 1.0 / std::sqrt(squares + 1e-5), 1e-6);
  }
}

TEST_P(NormOf, InputGradientIsTheSlope) {
  for (const std::int64_t cols : {2, 33, 48}) {
    Case at(GetParam(), 5, cols);
    at.forward(Parallel(1));
    const DTypeArray dx = same_bits_everywhere(
        [&](const Parallel& parallel) { return at.backward_input(parallel, nullptr); });
    Doubles x = doubles_of(at.x);
    const Doubles weight = doubles_of(at.weight), bias = doubles_of(at.bias);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = slope_at(x, i, [&] { return at.loss(x, weight, bias); });
      // Two columns nearly cancel: the rest of g - mean(g) - ... is rounding of terms like g.
      const double terms = static_cast<double>(at.rstd[i / static_cast<std::size_t>(cols)]) * 4.0;
      ASSERT_NEAR(dx[i], want, tolerance(want) + 1e-5 * terms) << i << " of " << cols << " columns";
    }
  }
}

TEST_P(NormOf, InputGradientTakesTheResidualBeforeRounding) {
  Case at(GetParam(), 7, 130);
  at.forward(Parallel(1));
  const DTypeArray residual(GetParam().dtype, normal_floats(7 * 130, 5));
  Case exact = at;  // the same numbers in fp32, so that nothing is rounded before the sum
  exact.shape.dtype = DType::kF32;
  for (DTypeArray* array : {&exact.x, &exact.weight, &exact.bias, &exact.dy}) {
    std::vector<float> values(array->size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = (*array)[i];
    *array = DTypeArray(DType::kF32, values);
  }
  const DTypeArray alone = exact.backward_input(Parallel(1), nullptr);
  const DTypeArray sum = same_bits_everywhere(
      [&](const Parallel& parallel) { return at.backward_input(parallel, residual.data()); });
  DTypeArray want(GetParam().dtype, 7 * 130);
  for (std::size_t i = 0; i < want.size(); ++i) want.set(i, alone[i] + residual[i]);
  EXPECT_TRUE(sum == want);
}

TEST_P(NormOf, WeightGradientIsTheSlope) {
  for (const std::int64_t cols : {1, 21, 140}) {
    Case at(GetParam(), 150, cols);  // more than two blocks of 64 rows
    at.forward(Parallel(1));
    DTypeArray dbias(GetParam().dtype, cols);
    const DTypeArray dweight = same_bits_everywhere([&](const Parallel& parallel) {
      DTypeArray out(GetParam().dtype, cols);
      norm_backward_weight(parallel, at.shape, at.dy.data(), at.x.data(),
                           GetParam().rms ? nullptr : at.mean.data(), at.rstd.data(), out.data(),
                           GetParam().rms ? nullptr : dbias.data());
      return out;
    });
    const Doubles x = doubles_of(at.x);
    Doubles weight = doubles_of(at.weight), bias = doubles_of(at.bias);
    for (std::size_t c = 0; c < weight.size(); ++c) {
      const double want = slope_at(weight, c, [&] { return at.loss(x, weight, bias); });
      ASSERT_NEAR(dweight[c], want, tolerance(want) + 2e-5) << c << " of " << cols << " columns";
      if (GetParam().rms) continue;
      const double want_bias = slope_at(bias, c, [&] { return at.loss(x, weight, bias); });
      ASSERT_NEAR(dbias[c], want_bias, tolerance(want_bias) + 2e-5) << c;
    }
    EXPECT_TRUE(dbias.guard_is_whole());
  }
}

TEST_P(NormOf, TakesNoRows) {
  Case at(GetParam(), 0, 8);
  EXPECT_TRUE(at.forward(Parallel(2)).guard_is_whole());
  DTypeArray dweight(GetParam().dtype, 8), dbias(GetParam().dtype, 8);
  norm_backward_weight(Parallel(2), at.shape, at.dy.data(), at.x.data(), at.mean.data(),
                       at.rstd.data(), dweight.data(), dbias.data());
  for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(dweight[c], 0.0f);
}

// A large mean on small differences: one pass over x^2 would lose the variance altogether.
TEST(Norm, KeepsTheVarianceOfNumbersFarFromZero) {
  Case at({DType::kF32, false}, 1, 64);
  for (std::size_t c = 0; c < 64; ++c) at.x.set(c, 4096.0f + static_cast<float>(c % 2));
  at.forward(Parallel(1));
  EXPECT_NEAR(at.rstd[0], 1.0 / std::sqrt(0.25 + 1e-5), 1e-5);
}

TEST(Norm, LeavesANanInItsOwnRow) {
  Case at({DType::kF32, false}, 3, 20);
  at.x.set(25, std::nanf(""));
  const DTypeArray y = at.forward(Parallel(1));
  for (std::size_t i = 0; i < 60; ++i) EXPECT_EQ(std::isnan(y[i]), i / 20 == 1) << i;
}

TEST(Norm, RefusesOtherTypesAndMissingMeans) {
  Case at({DType::kF32, false}, 1, 4);
  NormShape wrong = at.shape;
  wrong.dtype = DType::kI32;
  const Parallel parallel(1);
  EXPECT_THROW(norm_forward(parallel, wrong, at.x.data(), at.weight.data(), nullptr, at.dy.data(),
                            at.mean.data(), at.rstd.data()),
               InternalError);
  EXPECT_THROW(norm_backward_input(parallel, at.shape, at.dy.data(), at.x.data(), at.weight.data(),
                                   nullptr, at.rstd.data(), nullptr, at.dy.data()),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::host
