// Products on a GPU: strides, alignment and the choice of a library. The contract has their values.
#include "kernels/cuda/gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/gemm_plain.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"
#ifdef SLUICE_CUDA_EMULATION
#include "kernels/cuda/gemm_cublaslt.hpp"
#include "tests/kernels/cuda/fake_cublaslt.hpp"
#endif

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

using CudaGemm = CudaKernelTest;
using testing::for_each_gemm;
using testing::GemmFactors;

kernels::host::DTypeArray multiply(GemmBackend& backend, const GemmShape& shape,
                                   const GemmFactors& in, bool with_bias) {
  const DeviceDTypeArray a(in.a), b(in.b), bias(in.bias);
  DeviceDTypeArray c(shape.output, shape.m * shape.n);
  DeviceBytes workspace(gemm_workspace_bytes(backend, shape));
  gemm(nullptr, backend, shape, a.data(), b.data(), with_bias ? bias.data() : nullptr, c.data(),
       workspace.data());
  return c.read();
}

#ifndef SLUICE_CUDA_EMULATION
TEST_F(CudaGemm, ChosenBackendGivesTheSameBitsInEveryRun) {
  const auto one = make_gemm_backend(), other = make_gemm_backend();
  // Few tiles and a long k: where a split of k pays.
  for_each_gemm({64, 96, 8192}, [&](const GemmShape& shape) {
    const GemmFactors in(shape);
    const kernels::host::DTypeArray first = multiply(*one, shape, in, true);
    EXPECT_TRUE(multiply(*one, shape, in, true) == first);
    EXPECT_TRUE(multiply(*other, shape, in, true) == first);
  });
}
#endif

TEST_F(CudaGemm, PlainDoesNotDependOnTheAlignmentOfItsFactors) {
  const auto backend = make_plain_gemm();
  for_each_gemm({40, 48, 56}, [&](const GemmShape& shape) {
    const GemmFactors in(shape);
    const kernels::host::DTypeArray aligned = multiply(*backend, shape, in, false);
    const DeviceDTypeArray a(in.a, 1), b(in.b, 3);
    DeviceDTypeArray c(shape.output, shape.m * shape.n, 1);
    gemm(nullptr, *backend, shape, a.data(), b.data(), nullptr, c.data(), nullptr);
    EXPECT_TRUE(c.read() == aligned);
  });
}

// Rows further apart than they are long: the elements between are neither read into a sum nor
// written.
void expect_strides_kept(GemmBackend& backend) {
  for (const std::int64_t extra : {8, 3}) {
    for_each_gemm({20, 27, 37}, [&](const GemmShape& shape) {
      const GemmFactors in(shape);
      const kernels::host::DTypeArray dense = multiply(backend, shape, in, true);
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
      gemm(nullptr, backend, shape, device_a.data(), device_b.data(), bias.data(), c.data(),
           nullptr, {a_stride, b_stride, c_stride});
      EXPECT_TRUE(c.read() == want) << shape.transpose_a << shape.transpose_b;
    });
  }
}

TEST_F(CudaGemm, ReadsAndWritesByStrides) {
  expect_strides_kept(*make_plain_gemm());
#ifdef SLUICE_CUDA_EMULATION
  FakeCublasLt fake;
  expect_strides_kept(*make_cublaslt_gemm(FakeCublasLt::table()));
#endif
}

TEST_F(CudaGemm, RefusesStridesShorterThanRows) {
  const auto backend = make_plain_gemm();
  EXPECT_THROW(
      gemm(nullptr, *backend, {2, 3, 4}, nullptr, nullptr, nullptr, nullptr, nullptr, {.a = 3}),
      InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
