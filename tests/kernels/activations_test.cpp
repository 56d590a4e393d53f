#include "kernels/host/activations.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::host {
namespace {

// sqrt(2 / pi), of the tanh approximation of GELU.
const double kRoot = std::sqrt(2.0 / 3.14159265358979323846);

double gelu(double x) {
  // x/2 (1 + tanh u) without its cancellation at negative x.
  return x / (1.0 + std::exp(-2.0 * kRoot * (x + 0.044715 * x * x * x)));
}
double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

template <class Function>
double slope(const Function& function, double x) {
  constexpr double kStep = 1e-5;
  return (function(x + kStep) - function(x - kStep)) / (2.0 * kStep);
}

// A dense sweep of the values that activations see, and as far beyond as the dtype goes.
std::vector<float> sweep(DType type) {
  std::vector<float> values;
  for (int i = -6000; i <= 6000; ++i) values.push_back(static_cast<float>(i) * 1e-3f);
  for (int i = -40; i <= 40; ++i) values.push_back(static_cast<float>(i) * 0.5f);
  for (const float far : {0.0f, 1e-30f, 1e-42f, 50.0f, 100.0f, 1e4f, 1e20f, 3e38f}) {
    if (far > largest_of(type)) continue;
    values.push_back(far);
    values.push_back(-far);
  }
  return values;
}

class ActivationOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, ActivationOf,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& variant) {
                           return std::string(dtype_name(variant.param));
                         });

TEST_P(ActivationOf, AddRoundsOnceAlsoInPlace) {
  for (const std::int64_t elems : {0, 1, 19, 16384 + 3, 50000}) {
    const DTypeArray a(GetParam(), normal_floats(elems, 1));
    const DTypeArray b(GetParam(), normal_floats(elems, 2));
    const DTypeArray sum = same_bits_everywhere([&](const Parallel& parallel) {
      DTypeArray out(GetParam(), elems);
      add(parallel, a.data(), b.data(), out.data(), elems, GetParam());
      return out;
    });
    DTypeArray want(GetParam(), elems);
    for (std::size_t i = 0; i < a.size(); ++i) want.set(i, a[i] + b[i]);
    EXPECT_TRUE(sum == want);
    DTypeArray in_place = a;
    add(Parallel(2), in_place.data(), b.data(), in_place.data(), elems, GetParam());
    EXPECT_TRUE(in_place == want);
    in_place = b;
    add(Parallel(2), a.data(), in_place.data(), in_place.data(), elems, GetParam());
    EXPECT_TRUE(in_place == want);
  }
}

TEST_P(ActivationOf, GeluIsTheTanhApproximation) {
  const DTypeArray x(GetParam(), sweep(GetParam()));
  const auto elems = static_cast<std::int64_t>(x.size());
  const DTypeArray y = same_bits_everywhere([&](const Parallel& parallel) {
    DTypeArray out(GetParam(), elems);
    gelu_forward(parallel, x.data(), out.data(), elems, GetParam());
    return out;
  });
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = gelu(x[i]);
    // In the negative tail fp32 knows the exponent, up to 30, to a few 2^-24 of itself.
    const double relative = x[i] < -2.0f ? 8e-6 : 6e-7;
    ASSERT_NEAR(y[i], want, relative * std::abs(want) + rounding_at(GetParam(), want)) << x[i];
  }
}

TEST_P(ActivationOf, GeluGradientIsTheSlope) {
  const DTypeArray x(GetParam(), sweep(GetParam()));
  const auto elems = static_cast<std::int64_t>(x.size());
  const DTypeArray dy(GetParam(), normal_floats(elems, 3));
  const DTypeArray dx = same_bits_everywhere([&](const Parallel& parallel) {
    DTypeArray out(GetParam(), elems);
    gelu_backward(parallel, dy.data(), x.data(), out.data(), elems, GetParam());
    return out;
  });
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = std::clamp(static_cast<double>(x[i]), -20.0, 20.0);
    const double want = slope(gelu, at) * static_cast<double>(dy[i]);
    const double scale = std::abs(static_cast<double>(dy[i]));
    ASSERT_NEAR(dx[i], want, rounding_at(GetParam(), want) + 2e-6 * scale) << x[i];
  }
}

TEST(Gelu, ShowsInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {infinity, -infinity, std::nanf("")};
  const DTypeArray x(DType::kF32, special), ones(DType::kF32, std::vector<float>(3, 1.0f));
  DTypeArray y(DType::kF32, 3), dx(DType::kF32, 3);
  gelu_forward(Parallel(1), x.data(), y.data(), 3, DType::kF32);
  gelu_backward(Parallel(1), ones.data(), x.data(), dx.data(), 3, DType::kF32);
  EXPECT_EQ(y[0], infinity);
  EXPECT_FALSE(y[1] == 0.0f);  // -inf * 0 is not hidden
  EXPECT_TRUE(std::isnan(y[2]));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(dx[i])) << i;
}

struct Gated {
  std::int64_t rows, cols;
  DTypeArray x, dy;

  // Gates from the sweep, ups at random.
  Gated(DType dtype, std::int64_t width) : rows(0), cols(width), x(dtype, 0), dy(dtype, 0) {
    const std::vector<float> gates = sweep(dtype);
    rows = static_cast<std::int64_t>(gates.size()) / cols;
    const std::vector<float> ups = normal_floats(rows * cols, 4);
    std::vector<float> both;
    for (std::int64_t row = 0; row < rows; ++row) {
      both.insert(both.end(), gates.begin() + row * cols, gates.begin() + (row + 1) * cols);
      both.insert(both.end(), ups.begin() + row * cols, ups.begin() + (row + 1) * cols);
    }
    x = DTypeArray(dtype, both);
    dy = DTypeArray(dtype, normal_floats(rows * cols, 5));
  }
  double gate(std::int64_t row, std::int64_t c) const {
    return x[static_cast<std::size_t>(row * 2 * cols + c)];
  }
  double up(std::int64_t row, std::int64_t c) const { return gate(row, cols + c); }
};

TEST_P(ActivationOf, SwigluIsSiluTimesUp) {
  for (const std::int64_t cols : {1, 37, 1024}) {
    const Gated at(GetParam(), cols);
    const DTypeArray y = same_bits_everywhere([&](const Parallel& parallel) {
      DTypeArray out(GetParam(), at.rows * cols);
      swiglu_forward(parallel, at.x.data(), out.data(), at.rows, cols, GetParam());
      return out;
    });
    for (std::int64_t i = 0; i < at.rows * cols; ++i) {
      const double want = silu(at.gate(i / cols, i % cols)) * at.up(i / cols, i % cols);
      if (std::abs(want) > largest_of(GetParam())) continue;
      ASSERT_NEAR(y[static_cast<std::size_t>(i)], want,
                  rounding_at(GetParam(), want) + 1e-6 * std::abs(want) + 1e-37)
          << at.gate(i / cols, i % cols);
    }
  }
}

TEST_P(ActivationOf, SwigluGradientsAreTheSlopes) {
  for (const std::int64_t cols : {37, 1024}) {
    const Gated at(GetParam(), cols);
    const DTypeArray dx = same_bits_everywhere([&](const Parallel& parallel) {
      DTypeArray out(GetParam(), at.rows * 2 * cols);
      swiglu_backward(parallel, at.dy.data(), at.x.data(), out.data(), at.rows, cols, GetParam());
      return out;
    });
    for (std::int64_t i = 0; i < at.rows * cols; ++i) {
      const std::int64_t row = i / cols, c = i % cols;
      const double dy = at.dy[static_cast<std::size_t>(i)];
      const double near = std::clamp(at.gate(row, c), -60.0, 60.0);
      const double dgate = dy * at.up(row, c) * slope(silu, near);
      const double dup = dy * silu(at.gate(row, c));
      const double scale = std::abs(dy * at.up(row, c));
      const auto place = static_cast<std::size_t>(row * 2 * cols + c);
      ASSERT_NEAR(dx[place], dgate, rounding_at(GetParam(), dgate) + 2e-6 * scale)
          << at.gate(row, c);
      if (std::abs(dup) > largest_of(GetParam())) continue;
      ASSERT_NEAR(dx[place + static_cast<std::size_t>(cols)], dup,
                  rounding_at(GetParam(), dup) + 1e-6 * std::abs(dup) + 1e-37);
    }
  }
}

std::int64_t row_elems(const AttentionShape& shape) {
  return (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
}

DTypeArray roped(const Parallel& parallel, const AttentionShape& shape, bool inverse,
                 const DTypeArray& from) {
  DTypeArray qkv = from;
  rope(parallel, shape, 10000.0f, inverse, qkv.data());
  return qkv;
}

TEST_P(ActivationOf, RopeTurnsEachPairByItsPosition) {
  for (const std::int64_t head_dim : {2, 10, 64, 160}) {
    const AttentionShape shape{2, 45, 4, 2, head_dim, GetParam()};
    const std::int64_t stride = row_elems(shape), half = head_dim / 2;
    const DTypeArray from(GetParam(), normal_floats(shape.batch * shape.time * stride, 6));
    const DTypeArray qkv = same_bits_everywhere(
        [&](const Parallel& parallel) { return roped(parallel, shape, false, from); });
    for (std::int64_t i = 0; i < shape.batch * shape.time * stride; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const std::int64_t head = i % stride / head_dim, within = i % head_dim;
      if (head >= shape.heads + shape.kv_heads) {
        ASSERT_EQ(qkv[place], from[place]) << "v is not turned";
        continue;
      }
      const auto position = static_cast<double>(i / stride % shape.time);
      const double exponent = -static_cast<double>(within % half) / static_cast<double>(half);
      const double angle = position * std::pow(10000.0, exponent);
      const bool low = within < half;
      const double other = from[low ? place + static_cast<std::size_t>(half)
                                    : place - static_cast<std::size_t>(half)];
      const double want = static_cast<double>(from[place]) * std::cos(angle) +
                          (low ? -1.0 : 1.0) * other * std::sin(angle);
      ASSERT_NEAR(qkv[place], want, rounding_of(GetParam()) * std::abs(want) + 1e-6) << i;
    }
  }
}

TEST_P(ActivationOf, RopeInverseUndoesIt) {
  const AttentionShape shape{1, 4096, 1, 1, 8, GetParam()};
  const DTypeArray from(GetParam(), normal_floats(shape.time * row_elems(shape), 7));
  const Parallel parallel(2);
  const DTypeArray back = roped(parallel, shape, true, roped(parallel, shape, false, from));
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_NEAR(back[i], from[i], 12.0 * rounding_of(GetParam()) + 1e-6);
  }
}

TEST(Rope, RefusesOddHeads) {
  std::vector<float> qkv(9);
  EXPECT_THROW(rope(Parallel(1), {1, 1, 1, 1, 3, DType::kF32}, 1e4f, false, qkv.data()),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::host
