// GELU, SwiGLU and rotary embeddings, as every implementation of Kernels computes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

using kernels::AttentionShape;

inline double gelu_in_fp64(double x) {
  // x/2 (1 + tanh u) without its cancellation at negative x.
  const double root = std::sqrt(2.0 / 3.14159265358979323846);
  return x / (1.0 + std::exp(-2.0 * root * (x + 0.044715 * x * x * x)));
}
inline double silu_in_fp64(double x) {
  return x / (1.0 + std::exp(-x));
}
inline double slope_at(double (*function)(double), double x) {
  constexpr double kStep = 1e-5;
  return (function(x + kStep) - function(x - kStep)) / (2.0 * kStep);
}

// A dense sweep of the values that activations see, and as far beyond as the dtype goes; over and
// over, in an array of `elems`.
inline DTypeArray sweep(DType type, std::int64_t elems) {
  std::vector<float> values;
  for (const float far : {0.0f, 1e-30f, 1e-42f, 50.0f, 88.0f, 100.0f, 300.0f, 1e4f, 1e20f, 3e38f}) {
    if (far > kernels::host::largest_of(type)) continue;
    values.push_back(far);
    values.push_back(-far);
  }
  for (int i = -40; i <= 40; ++i) values.push_back(static_cast<float>(i) * 0.5f);
  for (int i = -6000; i <= 6000; ++i) values.push_back(static_cast<float>(i) * 1e-3f);
  const std::size_t kinds = values.size();
  values.resize(static_cast<std::size_t>(elems));
  for (std::size_t i = kinds; i < values.size(); ++i) values[i] = values[i - kinds];
  return {type, values};
}

struct Activation {
  DTypeArray y, dx;
  bool operator==(const Activation&) const = default;
};

template <class Backend>
Activation gelu(const Variation& at, const DTypeArray& x_in, const DTypeArray& dy_in) {
  const auto elems = static_cast<std::int64_t>(x_in.size());
  BackendArray<Backend> x(x_in, at.offset), dy(dy_in), y(x_in.type(), elems);
  BackendArray<Backend> dx(x_in.type(), elems);
  at.kernels.gelu_forward(x.data(), y.data(), elems, x_in.type());
  at.kernels.gelu_backward(dy.data(), x.data(), dx.data(), elems, x_in.type());
  return {y.read(), dx.read()};
}

template <class Backend>
class ActivationContract : public KernelsContract<Backend> {};
TYPED_TEST_SUITE_P(ActivationContract);

TYPED_TEST_P(ActivationContract, GeluIsTheTanhApproximationAndItsSlope) {
  for (const DType dtype : kActDTypes) {
    for (const std::int64_t elems : {1, 63, 4096, 40001}) {
      const DTypeArray x = sweep(dtype, elems), dy(dtype, normal_floats(elems, 3));
      this->everywhere(
          [&](const Variation& at) { return gelu<TypeParam>(at, x, dy); },
          [&](const Activation& got) {
            for (std::size_t i = 0; i < x.size(); ++i) {
              const double want = gelu_in_fp64(x[i]);
              // In the negative tail fp32 knows the exponent, up to 30, to a few 2^-24 of itself.
              const double relative = x[i] < -2.0f ? 8e-6 : 6e-7;
              ASSERT_NEAR(got.y[i], want, relative * std::abs(want) + rounding_at(dtype, want))
                  << x[i];
              const double near = std::clamp(double{x[i]}, -20.0, 20.0);
              const double want_dx = slope_at(gelu_in_fp64, near) * double{dy[i]};
              ASSERT_NEAR(got.dx[i], want_dx,
                          rounding_at(dtype, want_dx) + 2e-6 * std::abs(double{dy[i]}))
                  << x[i];
            }
          });
    }
  }
}

TYPED_TEST_P(ActivationContract, GeluShowsInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : kActDTypes) {
    const DTypeArray x(dtype, std::vector<float>{infinity, -infinity, std::nanf("")});
    const Activation got = gelu<TypeParam>({this->kernels(), 0, ""}, x,
                                           DTypeArray(dtype, std::vector<float>(3, 1.0f)));
    EXPECT_EQ(got.y[0], infinity);
    EXPECT_FALSE(got.y[1] == 0.0f);  // -inf * 0 is not hidden
    EXPECT_TRUE(std::isnan(got.y[2]));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(got.dx[i])) << i;
  }
}

// Gates from the sweep, ups at random.
struct GatedBatch {
  std::int64_t rows, cols;
  DTypeArray x, dy;

  GatedBatch(DType dtype, std::int64_t of_rows, std::int64_t of_cols)
      : rows(of_rows),
        cols(of_cols),
        x(dtype, normal_floats(rows * 2 * cols, 4)),
        dy(dtype, normal_floats(rows * cols, 5)) {
    const DTypeArray gates = sweep(dtype, rows * cols);
    for (std::size_t i = 0; i < gates.size(); ++i) x.set(gate_at(i), gates[i]);
  }
  // The place of the gate of element i of y; its up is `cols` later.
  std::size_t gate_at(std::size_t i) const { return i + i / width() * width(); }
  std::size_t width() const { return static_cast<std::size_t>(cols); }
};

template <class Backend>
Activation swiglu(const Variation& at, const GatedBatch& in) {
  const DType dtype = in.x.type();
  BackendArray<Backend> x(in.x, at.offset), dy(in.dy), y(dtype, in.rows * in.cols);
  BackendArray<Backend> dx(dtype, in.rows * 2 * in.cols);
  at.kernels.swiglu_forward(x.data(), y.data(), in.rows, in.cols, dtype);
  at.kernels.swiglu_backward(dy.data(), x.data(), dx.data(), in.rows, in.cols, dtype);
  return {y.read(), dx.read()};
}

TYPED_TEST_P(ActivationContract, SwigluIsSiluTimesUpAndItsSlopes) {
  constexpr std::int64_t kSizes[][2] = {{0, 16},   {1, 8},   {3, 7},     {12107, 1},
                                        {327, 37}, {70, 24}, {12, 1024}, {6, 2056}};
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, cols] : kSizes) {
      const GatedBatch in(dtype, rows, cols);
      const auto near = [&](float got, double want, double error) {
        if (std::abs(want) > kernels::host::largest_of(dtype)) return;
        ASSERT_NEAR(got, want, rounding_at(dtype, want) + error);
      };
      this->everywhere(
          [&](const Variation& at) { return swiglu<TypeParam>(at, in); },
          [&](const Activation& got) {
            for (std::size_t i = 0; i < in.dy.size(); ++i) {
              const std::size_t place = in.gate_at(i);
              const double gate = in.x[place], up = in.x[place + in.width()], dy = in.dy[i];
              SCOPED_TRACE(gate);
              const double y = silu_in_fp64(gate) * up, dup = dy * silu_in_fp64(gate);
              near(got.y[i], y, 1e-6 * std::abs(y) + 1e-37);
              near(got.dx[place + in.width()], dup, 1e-6 * std::abs(dup) + 1e-37);
              near(got.dx[place], dy * up * slope_at(silu_in_fp64, std::clamp(gate, -60.0, 60.0)),
                   2e-6 * std::abs(dy * up));
            }
          });
    }
  }
}

TYPED_TEST_P(ActivationContract, SwigluCarriesInfinityAndNan) {
  for (const DType dtype : kActDTypes) {
    GatedBatch in(dtype, 1, 3);
    const float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < 6; ++i) in.x.set(i, 2.0f);
    in.x.set(0, infinity);
    in.x.set(1, std::nanf(""));
    const Activation got = swiglu<TypeParam>({this->kernels(), 0, ""}, in);
    EXPECT_EQ(got.y[0], infinity);
    EXPECT_TRUE(std::isnan(got.y[1]) && std::isnan(got.dx[1]) && std::isnan(got.dx[4]));
    EXPECT_TRUE(std::isfinite(got.y[2]) && std::isfinite(got.dx[2]) && std::isfinite(got.dx[5]));
  }
}

inline std::int64_t qkv_row_elems(const AttentionShape& s) {
  return (s.heads + 2 * s.kv_heads) * s.head_dim;
}

template <class Backend>
DTypeArray roped(const Variation& at, const AttentionShape& s, float base,
                 const std::vector<bool>& turns, const DTypeArray& from) {
  BackendArray<Backend> qkv(from, at.offset);
  for (const bool inverse : turns) at.kernels.rope(s, base, inverse, qkv.data());
  return qkv.read();
}

// Angles in fp64, their cosines and sines in fp32, each product and sum rounded: the same bits, but
// for an angle's last bit in fp64.
inline DTypeArray roped_as_documented(const AttentionShape& s, bool inverse,
                                      const DTypeArray& from) {
  DTypeArray qkv = from;
  const std::int64_t stride = qkv_row_elems(s), half = s.head_dim / 2;
  for (std::int64_t i = 0; i < s.batch * s.time * stride; ++i) {
    const std::int64_t head = i % stride / s.head_dim, within = i % s.head_dim;
    if (head >= s.heads + s.kv_heads || within >= half) continue;
    const double exponent = -static_cast<double>(within) / static_cast<double>(half);
    const double position = static_cast<double>(s.first_position + i / stride % s.time);
    const double angle = position * std::pow(10000.0, exponent);
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
    const auto low = static_cast<std::size_t>(i), high = low + static_cast<std::size_t>(half);
    qkv.set(low, from[low] * cosine - from[high] * sine);
    qkv.set(high, from[high] * cosine + from[low] * sine);
  }
  return qkv;
}

TYPED_TEST_P(ActivationContract, RopeTurnsEachPairByItsPosition) {
  for (const DType dtype : kActDTypes) {
    for (AttentionShape s : {AttentionShape{2, 45, 4, 2, 2}, AttentionShape{2, 45, 4, 2, 10},
                             AttentionShape{2, 45, 4, 2, 64}, AttentionShape{2, 45, 4, 2, 160},
                             AttentionShape{2, 70, 3, 1, 16}, AttentionShape{3, 5, 2, 2, 6},
                             AttentionShape{1, 300, 1, 1, 128}, AttentionShape{0, 8, 1, 1, 8},
                             AttentionShape{1, 21, 2, 1, 16, dtype, 1000}}) {
      s.dtype = dtype;
      const DTypeArray from(dtype, normal_floats(s.batch * s.time * qkv_row_elems(s), 6));
      for (const bool inverse : {false, true}) {
        const DTypeArray want = roped_as_documented(s, inverse, from);
        this->everywhere(
            [&](const Variation& at) { return roped<TypeParam>(at, s, 1e4f, {inverse}, from); },
            [&](const DTypeArray& got) {
              std::size_t different = 0;
              for (std::size_t i = 0; i < want.size(); ++i) different += got[i] != want[i] ? 1 : 0;
              EXPECT_LE(different, want.size() / 100000) << s.time << " x " << s.head_dim;
              expect_near(
                  got, doubles(want),
                  [&](double at) { return rounding_of(dtype) * std::abs(at) + 1e-6; }, "qkv");
            });
      }
    }
  }
}

TYPED_TEST_P(ActivationContract, RopeInverseUndoesIt) {
  for (const DType dtype : kActDTypes) {
    for (AttentionShape s : {AttentionShape{1, 4096, 1, 1, 8}, AttentionShape{2, 33, 2, 1, 32}}) {
      s.dtype = dtype;
      const DTypeArray from(dtype, normal_floats(s.batch * s.time * qkv_row_elems(s), 7));
      const Variation plain{this->kernels(), 0, ""};
      expect_near(
          roped<TypeParam>(plain, s, s.batch == 1 ? 1e4f : 5e5f, {false, true}, from),
          doubles(from),
          [&](double at) {
            return (8.0 + std::min(4.0, 2.0 * std::abs(at))) * rounding_of(dtype) + 1e-6;
          },
          "qkv");
    }
  }
}

TYPED_TEST_P(ActivationContract, RopeRefusesOddHeads) {
  for (const std::int64_t head_dim : {3, 7}) {
    EXPECT_THROW(this->kernels().rope({1, 1, 1, 1, head_dim, DType::kF32}, 1e4f, false, nullptr),
                 InternalError);
  }
}

REGISTER_TYPED_TEST_SUITE_P(ActivationContract, GeluIsTheTanhApproximationAndItsSlope,
                            GeluShowsInfinityAndNan, SwigluIsSiluTimesUpAndItsSlopes,
                            SwigluCarriesInfinityAndNan, RopeTurnsEachPairByItsPosition,
                            RopeInverseUndoesIt, RopeRefusesOddHeads);

}  // namespace sluice::testing
