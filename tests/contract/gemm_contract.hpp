// Products of matrices, as every implementation of Kernels computes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/activations_contract.hpp"
#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

using kernels::GemmShape;

struct GemmFactors {
  DTypeArray a, b, bias;
  explicit GemmFactors(const GemmShape& shape)
      : a(shape.dtype, normal_floats(shape.m * shape.k, 1)),
        b(shape.dtype, normal_floats(shape.k * shape.n, 2)),
        bias(shape.dtype, normal_floats(shape.n, 3)) {}
};

// rounds_before_bias: a library may store the product, and add the bias in another kernel.
inline void expect_gemm(const GemmShape& shape, const GemmFactors& in, bool bias,
                        const DTypeArray& c, bool rounds_before_bias = false) {
  const auto want = reference::gemm(shape, doubles(in.a), doubles(in.b),
                                    bias ? doubles(in.bias) : reference::Doubles());
  // An fp32 sum of k terms in any order: k roundings at worst, sqrt(k) of them in practice.
  const double sums = 0x1p-23 * (1.0 + std::sqrt(static_cast<double>(shape.k)));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    double allowed = sums * want.magnitude[i] + rounding_at(shape.output, want.c[i]);
    if (bias && rounds_before_bias) {
      const std::size_t column = i % static_cast<std::size_t>(shape.n);
      allowed += rounding_at(shape.output, want.c[i] - in.bias[column]);
    }
    if (!(std::abs(c[i] - want.c[i]) <= allowed)) ++wrong;
  }
  EXPECT_EQ(wrong, 0u) << shape.m << " x " << shape.n << " x " << shape.k << " of "
                       << dtype_name(shape.dtype) << (shape.transpose_a ? " A^T" : "")
                       << (shape.transpose_b ? " B^T" : "") << (bias ? " + bias" : "");
}

struct GemmSize {
  std::int64_t m, n, k;
};

// Every transposition, dtype and output at one size.
template <class Check>
void for_each_gemm(const GemmSize& size, const Check& check) {
  for (const auto& [dtype, output] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
        std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF16, DType::kF16},
        std::pair{DType::kF16, DType::kF32}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        check(GemmShape{size.m, size.n, size.k, transpose_a, transpose_b, dtype, output});
      }
    }
  }
}

template <class Backend>
DTypeArray multiply(Kernels& kernels, const GemmShape& shape, const GemmFactors& in, bool bias) {
  BackendArray<Backend> a(in.a), b(in.b), added(in.bias), c(shape.output, shape.m * shape.n);
  typename Backend::Memory workspace(kernels.gemm_workspace_bytes(shape));
  kernels.gemm(shape, a.data(), b.data(), bias ? added.data() : nullptr, c.data(),
               workspace.data());
  return c.read();
}

template <class Backend>
class GemmContract : public KernelsContract<Backend> {};
TYPED_TEST_SUITE_P(GemmContract);

// Odd sizes, sizes that 16-byte copies can move, and sizes around tiles of 128 x 128 x 32 and 64 x
// 64 x 16.
TYPED_TEST_P(GemmContract, MatchesFp64OnEveryKindAndOddSizes) {
  std::vector<GemmSize> sizes{{1, 1, 1},      {1, 17, 63},    {17, 1, 5},
                              {63, 65, 1},    {64, 64, 64},   {8, 24, 40},
                              {129, 136, 33}, {136, 130, 72}, {200, 13, 77}};
  if (!TypeParam::kSlow) {
    const GemmSize more[] = {{17, 300, 63}, {129, 257, 31}, {200, 130, 77},
                             {512, 5, 9},   {5, 1024, 9},   {3, 4, 512}};
    sizes.insert(sizes.end(), std::begin(more), std::end(more));
  }
  for (const GemmSize& size : sizes) {
    for_each_gemm(size, [&](const GemmShape& shape) {
      const GemmFactors in(shape);
      for (const bool bias : {false, true}) {
        if (TypeParam::kSlow && bias != ((size.m + size.k) % 2 == 0)) continue;
        expect_gemm(shape, in, bias, multiply<TypeParam>(this->kernels(), shape, in, bias),
                    TypeParam::kRoundsBeforeBias);
      }
    });
  }
}

// The product, or x, may be rounded before GELU; a library may read x before it is rounded.
TYPED_TEST_P(GemmContract, GeluFollowsTheProduct) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GemmShape shape{24, 40, 32, false, true, dtype, dtype};
    GemmFactors in(shape);
    in.b = DTypeArray(dtype, normal_floats(40 * 32, 2, 0.2f));
    const DTypeArray before(dtype, normal_floats(24 * 40, 4));
    BackendArray<TypeParam> a(in.a), b(in.b), bias(in.bias), given(before);
    BackendArray<TypeParam> x(dtype, 24 * 40), y(dtype, 24 * 40), dx(dtype, 24 * 40);
    typename TypeParam::Memory workspace(this->kernels().gemm_workspace_bytes(shape));
    this->kernels().gemm_gelu(shape, a.data(), b.data(), bias.data(), x.data(), y.data(),
                              workspace.data());
    this->kernels().gemm_gelu_backward(shape, a.data(), b.data(), given.data(), dx.data(),
                                       workspace.data());
    expect_gemm(shape, in, true, x.read());
    const auto product = reference::gemm(shape, doubles(in.a), doubles(in.b), {}).c;
    reference::Doubles want_y, want_dx;
    for (std::size_t i = 0; i < product.size(); ++i) {
      want_y.push_back(gelu_in_fp64(product[i] + double{in.bias[i % 40]}));
      want_dx.push_back(slope_at(gelu_in_fp64, before[i]) * product[i]);
    }
    const auto expect_rounded_twice = [&](const DTypeArray& got, const reference::Doubles& want) {
      double largest = 0.0;
      for (const double value : want) largest = std::max(largest, std::abs(value));
      const double allowed = dtype == DType::kF32 ? 1e-5 : 2.0 * rounding_of(dtype) * largest;
      expect_near(
          got, want, [&](double) { return allowed; }, "gelu");
    };
    expect_rounded_twice(y.read(), want_y);
    expect_rounded_twice(dx.read(), want_dx);
  }
}

TYPED_TEST_P(GemmContract, CarriesNanAndInfinity) {
  for_each_gemm({5, 7, 9}, [&](const GemmShape& shape) {
    GemmFactors in(shape);
    in.a.set(0, std::numeric_limits<float>::quiet_NaN());
    in.b.set(in.b.size() - 1, std::numeric_limits<float>::infinity());
    const DTypeArray c = multiply<TypeParam>(this->kernels(), shape, in, false);
    EXPECT_TRUE(std::isnan(c[0]));
    EXPECT_TRUE(std::isinf(c[4 * 7 + 6]));
    EXPECT_TRUE(std::isfinite(c[4 * 7 + 5]));
  });
}

TYPED_TEST_P(GemmContract, RefusesEmptyShapesAndOtherTypes) {
  const Kernels& kernels = this->kernels();
  for (const GemmShape& shape :
       {GemmShape{0, 1, 1}, GemmShape{1, 1, 1, false, false, DType::kI32, DType::kI32},
        GemmShape{1, 1, 1, false, false, DType::kF32, DType::kBF16},
        GemmShape{1, 1, 1, false, false, DType::kBF16, DType::kF16}}) {
    EXPECT_THROW(kernels.gemm_workspace_bytes(shape), InternalError);
  }
}

TYPED_TEST_P(GemmContract, ZeroWritesItsBytesAndNoOthers) {
  std::vector<std::size_t> sizes{0, 1, 5, 16, 31, 300000};
  if (!TypeParam::kSlow) sizes.push_back((3 << 20) + 9);  // several workers
  for (const std::size_t begin : {0u, 1u, 15u, 16u}) {
    for (const std::size_t bytes : sizes) {
      typename TypeParam::Memory memory(begin + bytes + 40);
      this->kernels().zero(static_cast<std::uint8_t*>(memory.data()) + begin, bytes);
      std::vector<std::uint8_t> got(begin + bytes + 40), want(got.size(), 0xff);
      TypeParam::copy(got.data(), memory.data(), got.size());
      std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(begin), bytes, std::uint8_t{0});
      EXPECT_TRUE(got == want) << begin << " + " << bytes;
    }
  }
  this->kernels().zero(nullptr, 0);
}

REGISTER_TYPED_TEST_SUITE_P(GemmContract, MatchesFp64OnEveryKindAndOddSizes, GeluFollowsTheProduct,
                            CarriesNanAndInfinity, RefusesEmptyShapesAndOtherTypes,
                            ZeroWritesItsBytesAndNoOthers);

}  // namespace sluice::testing
