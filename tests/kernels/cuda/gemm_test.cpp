#include "kernels/cuda/gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
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

reference::Doubles doubles(const kernels::host::DTypeArray& array) {
  reference::Doubles values;
  for (std::size_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

struct Factors {
  kernels::host::DTypeArray a, b, bias;
  explicit Factors(const GemmShape& shape)
      : a(shape.dtype, kernels::host::normal_floats(shape.m * shape.k, 1)),
        b(shape.dtype, kernels::host::normal_floats(shape.k * shape.n, 2)),
        bias(shape.dtype, kernels::host::normal_floats(shape.n, 3)) {}
};

kernels::host::DTypeArray multiply(GemmBackend& backend, const GemmShape& shape, const Factors& in,
                                   bool with_bias) {
  const DeviceDTypeArray a(in.a), b(in.b), bias(in.bias);
  DeviceDTypeArray c(shape.output, shape.m * shape.n);
  DeviceBytes workspace(gemm_workspace_bytes(backend, shape));
  gemm(nullptr, backend, shape, a.data(), b.data(), with_bias ? bias.data() : nullptr, c.data(),
       workspace.data());
  return c.read();
}

void expect_right(const GemmShape& shape, const Factors& in, bool bias,
                  const kernels::host::DTypeArray& c) {
  const auto want = reference::gemm(shape, doubles(in.a), doubles(in.b),
                                    bias ? doubles(in.bias) : reference::Doubles());
  // An fp32 sum of k terms in any order: k roundings at worst, sqrt(k) of them in practice.
  const double sums = 0x1p-23 * (1.0 + std::sqrt(static_cast<double>(shape.k)));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double allowed =
        sums * want.magnitude[i] + kernels::host::rounding_at(shape.output, want.c[i]);
    if (!(std::abs(c[i] - want.c[i]) <= allowed)) ++wrong;
  }
  EXPECT_EQ(wrong, 0u) << shape.m << " x " << shape.n << " x " << shape.k << " of "
                       << dtype_name(shape.dtype) << (shape.transpose_a ? " A^T" : "")
                       << (shape.transpose_b ? " B^T" : "") << (bias ? " + bias" : "");
}

// Every transposition, dtype and output at one size.
template <class Check>
void for_each_kind(std::int64_t m, std::int64_t n, std::int64_t k, const Check& check) {
  for (const auto& [dtype, output] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
        std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF16, DType::kF16},
        std::pair{DType::kF16, DType::kF32}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        check(GemmShape{m, n, k, transpose_a, transpose_b, dtype, output});
      }
    }
  }
}

struct Size {
  std::int64_t m, n, k;
};
// Odd ones, ones that 16-byte copies can move, and around tiles of 128 x 128 x 32 and 64 x 64 x 16.
constexpr Size kSizes[] = {{1, 1, 1},   {1, 17, 63},    {17, 1, 5},     {63, 65, 1},  {64, 64, 64},
                           {8, 24, 40}, {129, 136, 33}, {136, 130, 72}, {200, 13, 77}};

class CudaGemm : public CudaKernelTest {
 protected:
  void expect_all_right(GemmBackend& backend) {
    for (const Size& size : kSizes) {
      for_each_kind(size.m, size.n, size.k, [&](const GemmShape& shape) {
        const Factors in(shape);
        const bool bias = (size.m + size.k) % 2 == 0;
        expect_right(shape, in, bias, multiply(backend, shape, in, bias));
      });
    }
  }
};

TEST_F(CudaGemm, PlainMatchesFp64OnEveryKindAndOddSizes) {
  expect_all_right(*make_plain_gemm());
}

#ifndef SLUICE_CUDA_EMULATION
// cuBLASLt where it is installed.
TEST_F(CudaGemm, ChosenBackendMatchesFp64OnEveryKindAndOddSizes) {
  const auto backend = make_gemm_backend();
  RecordProperty("backend", backend->name());
  expect_all_right(*backend);
}

TEST_F(CudaGemm, ChosenBackendGivesTheSameBitsInEveryRun) {
  const auto one = make_gemm_backend(), other = make_gemm_backend();
  // Few tiles and a long k: where a split of k pays.
  for_each_kind(64, 96, 8192, [&](const GemmShape& shape) {
    const Factors in(shape);
    const kernels::host::DTypeArray first = multiply(*one, shape, in, true);
    EXPECT_TRUE(multiply(*one, shape, in, true) == first);
    EXPECT_TRUE(multiply(*other, shape, in, true) == first);
  });
}
#endif

TEST_F(CudaGemm, PlainDoesNotDependOnTheAlignmentOfItsFactors) {
  const auto backend = make_plain_gemm();
  for_each_kind(40, 48, 56, [&](const GemmShape& shape) {
    const Factors in(shape);
    const kernels::host::DTypeArray aligned = multiply(*backend, shape, in, false);
    const DeviceDTypeArray a(in.a, 1), b(in.b, 3);
    DeviceDTypeArray c(shape.output, shape.m * shape.n, 1);
    gemm(nullptr, *backend, shape, a.data(), b.data(), nullptr, c.data(), nullptr);
    EXPECT_TRUE(c.read() == aligned);
  });
}

// Rows further apart than they are long: what lies between is neither read into a sum nor written.
TEST_F(CudaGemm, PlainReadsAndWritesByStrides) {
  const auto backend = make_plain_gemm();
  for (const std::int64_t extra : {8, 3}) {
    for_each_kind(20, 27, 37, [&](const GemmShape& shape) {
      const Factors in(shape);
      const kernels::host::DTypeArray dense = multiply(*backend, shape, in, true);
      const auto spread = [&](const kernels::host::DTypeArray& from, std::int64_t cols) {
        const std::int64_t stride = (cols + 7) / 8 * 8 + extra;
        const auto rows = static_cast<std::int64_t>(from.size()) / cols;
        kernels::host::DTypeArray to(from.type(),
                                     std::vector<float>(static_cast<std::size_t>(rows * stride),
                                                        std::numeric_limits<float>::quiet_NaN()));
        for (std::int64_t i = 0; i < rows * cols; ++i) {
          to.set(static_cast<std::size_t>(i / cols * stride + i % cols),
                 from[static_cast<std::size_t>(i)]);
        }
        return std::pair(to, stride);
      };
      const auto [a, a_stride] = spread(in.a, shape.transpose_a ? shape.m : shape.k);
      const auto [b, b_stride] = spread(in.b, shape.transpose_b ? shape.k : shape.n);
      const auto [want, c_stride] = spread(dense, shape.n);
      const DeviceDTypeArray device_a(a), device_b(b), bias(in.bias);
      DeviceDTypeArray c(kernels::host::DTypeArray(
          shape.output, std::vector<float>(want.size(), std::numeric_limits<float>::quiet_NaN())));
      gemm(nullptr, *backend, shape, device_a.data(), device_b.data(), bias.data(), c.data(),
           nullptr, {a_stride, b_stride, c_stride});
      EXPECT_TRUE(c.read() == want) << shape.transpose_a << shape.transpose_b;
    });
  }
}

TEST_F(CudaGemm, PlainCarriesNanAndInfinity) {
  const auto backend = make_plain_gemm();
  for_each_kind(5, 7, 9, [&](const GemmShape& shape) {
    Factors in(shape);
    in.a.set(0, std::numeric_limits<float>::quiet_NaN());
    in.b.set(in.b.size() - 1, std::numeric_limits<float>::infinity());
    const kernels::host::DTypeArray c = multiply(*backend, shape, in, false);
    EXPECT_TRUE(std::isnan(c[0]));
    EXPECT_TRUE(std::isinf(c[4 * 7 + 6]));
    EXPECT_TRUE(std::isfinite(c[4 * 7 + 5]));
  });
}

TEST_F(CudaGemm, RefusesImpossibleShapes) {
  const auto backend = make_plain_gemm();
  EXPECT_THROW(gemm_workspace_bytes(*backend, {0, 1, 1}), InternalError);
  EXPECT_THROW(
      gemm(nullptr, *backend, {2, 3, 4}, nullptr, nullptr, nullptr, nullptr, nullptr, {.a = 3}),
      InternalError);
  EXPECT_THROW(gemm_workspace_bytes(*backend, {1, 1, 1, false, false, DType::kI32, DType::kI32}),
               InternalError);
  EXPECT_THROW(gemm_workspace_bytes(*backend, {1, 1, 1, false, false, DType::kBF16, DType::kF16}),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
