#include "kernels/cuda/gemm_cublaslt.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"
#include "tests/kernels/cuda/fake_cublaslt.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::rounding_at;
using sluice::testing::for_each_gemm;
using sluice::testing::GemmFactors;

constexpr sluice::testing::GemmSize kSize{7, 5, 11};
constexpr GemmShape kShape{7, 5, 11, false, false, DType::kBF16, DType::kBF16};

// The product of arrays `offset` elements after 256-byte addresses.
host::DTypeArray multiply(GemmBackend& backend, const GemmShape& shape, bool with_bias,
                          std::int64_t offset = 0, cudaStream_t stream = nullptr,
                          void* workspace = nullptr) {
  const GemmFactors in(shape);
  const DeviceDTypeArray a(in.a, offset), b(in.b, offset), bias(in.bias, offset);
  DeviceDTypeArray c(shape.output, shape.m * shape.n, offset);
  gemm(stream, backend, shape, a.data(), b.data(), with_bias ? bias.data() : nullptr, c.data(),
       workspace);
  return c.read();
}

TEST(CublasLtGemm, MatchesFp64OnEveryKind) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  for_each_gemm(kSize, [&](const GemmShape& shape) {
    const GemmFactors in(shape);
    for (const bool bias : {false, true}) {
      const auto c = multiply(*backend, shape, bias);
      const auto want = reference::gemm(shape, doubles(in.a), doubles(in.b),
                                        bias ? doubles(in.bias) : reference::Doubles());
      for (std::size_t i = 0; i < c.size(); ++i) {
        ASSERT_NEAR(c[i], want.c[i],
                    0x1p-22 * want.magnitude[i] + rounding_at(shape.output, want.c[i]))
            << i;
      }
    }
  });
  EXPECT_EQ(fake.products, 40);
}

TEST(CublasLtGemm, AsksOnceForAKeyAndKeepsTheAnswer) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  for (int i = 0; i < 3; ++i) multiply(*backend, kShape, false);
  EXPECT_EQ(fake.heuristics, 1);
  EXPECT_EQ(fake.products, 3);
  multiply(*backend, kShape, true);
  EXPECT_EQ(fake.heuristics, 2);
  for_each_gemm(kSize, [&](const GemmShape& shape) { multiply(*backend, shape, false); });
  EXPECT_EQ(fake.heuristics, 2 + 19);  // kShape's own kind is known
  multiply(*backend, kShape, false, 1);
  EXPECT_EQ(fake.heuristics, 2 + 20);  // other alignments may need other algorithms
}

TEST(CublasLtGemm, AsksForDeterministicAlgorithmsInItsWorkspace) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  multiply(*backend, kShape, false);
  EXPECT_EQ(fake.asked.workspace_bytes, gemm_workspace_bytes(*backend, kShape));
  EXPECT_EQ(fake.asked.workspace_bytes, 32u << 20);
  EXPECT_EQ(fake.asked.reductions, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const std::uint32_t bytes : fake.asked.alignment) EXPECT_EQ(bytes, 256u);
  multiply(*backend, kShape, false, 4);
  for (const std::uint32_t bytes : fake.asked.alignment) EXPECT_EQ(bytes, 8u);
}

TEST(CublasLtGemm, QueuesOnTheStreamWithTheWorkspaceGiven) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  int stream = 0, workspace = 0;
  multiply(*backend, kShape, true, 0, reinterpret_cast<cudaStream_t>(&stream), &workspace);
  EXPECT_EQ(fake.stream, reinterpret_cast<cudaStream_t>(&stream));
  EXPECT_EQ(fake.workspace, &workspace);
}

TEST(CublasLtGemm, TouchesNoGpuBeforeTheFirstProductAndLeavesNothingBehind) {
  FakeCublasLt fake;
  {
    const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
    EXPECT_EQ(fake.calls, 0);
    EXPECT_STREQ(backend->name(), "cublaslt-130100");
    multiply(*backend, kShape, true);
    EXPECT_GT(fake.live, 0);
  }
  EXPECT_EQ(fake.live, 0);
}

TEST(CublasLtGemm, EveryFailedCallIsReportedAndLeavesNothingBehind) {
  int calls = 0;
  {
    FakeCublasLt fake;
    multiply(*make_cublaslt_gemm(FakeCublasLt::table()), kShape, true);
    calls = fake.calls;
  }
  EXPECT_GE(calls, 17);
  for (int failing = 1; failing <= calls; ++failing) {
    FakeCublasLt fake;
    {
      const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
      fake.failing_call = failing;
      EXPECT_THROW(multiply(*backend, kShape, true), DeviceError) << failing;
      fake.failing_call = 0;
      EXPECT_NO_THROW(multiply(*backend, kShape, true)) << failing;
    }
    EXPECT_EQ(fake.live, 0) << failing;
  }
}

TEST(CublasLtGemm, SaysWhichProductHasNoAlgorithm) {
  FakeCublasLt fake;
  fake.has_algorithm = false;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  try {
    multiply(*backend, kShape, false);
    FAIL() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("7 x 5 x 11 in BF16"), std::string::npos)
        << error.what();
  }
}

// 16 columns: rows of x of whole 16 bytes.
GemmShape gelu_shape(DType dtype) {
  return {7, 16, 11, false, true, dtype, dtype};
}

struct Gelu {
  kernels::host::DTypeArray x, y;
};

Gelu forward_gelu(GemmBackend& backend, const GemmShape& s, bool bias) {
  const GemmFactors in(s);
  Gelu result{kernels::host::DTypeArray(s.dtype, s.m * s.n),
              kernels::host::DTypeArray(s.dtype, s.m * s.n)};
  gemm_gelu(nullptr, backend, s, in.a.data(), in.b.data(), bias ? in.bias.data() : nullptr,
            result.x.data(), result.y.data(), nullptr);
  return result;
}

TEST(CublasLtGemm, GeluIsAnEpilogue) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  const auto plain = make_cublaslt_gemm(FakeCublasLt::table());
  int expected = 0;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const bool bias : {false, true}) {
      const GemmShape s = gelu_shape(dtype);
      const GemmFactors in(s);
      fake.has_activations = true;
      const Gelu fused = forward_gelu(*backend, s, bias);
      kernels::host::DTypeArray fused_dx(dtype, s.m * s.n), dx(dtype, s.m * s.n);
      gemm_gelu_backward(nullptr, *backend, s, in.a.data(), in.b.data(), fused.x.data(),
                         fused_dx.data(), nullptr);
      EXPECT_EQ(fake.activations, expected += 2);
      // If the library has no such epilogue: a product and a kernel.
      fake.has_activations = false;
      const Gelu apart = forward_gelu(*plain, s, bias);
      gemm_gelu_backward(nullptr, *plain, s, in.a.data(), in.b.data(), apart.x.data(), dx.data(),
                         nullptr);
      EXPECT_EQ(fake.activations, expected);
      EXPECT_TRUE(fused.x == apart.x);
      for (std::size_t i = 0; i < fused.y.size(); ++i) {
        // Apart, x or the product is rounded before GELU.
        const double x = 4 * host::rounding_of(dtype) * (std::abs(apart.x[i]) + 1.0);
        EXPECT_NEAR(fused.y[i], apart.y[i], x) << i;
        // Near a zero of the slope both are almost zero.
        EXPECT_NEAR(fused_dx[i], dx[i], 1e-6 + 4 * kernels::host::rounding_at(dtype, dx[i])) << i;
      }
    }
  }
}

TEST(CublasLtGemm, GeluIsAKernelWhereTheEpilogueTakesNoSuchShape) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  forward_gelu(*backend, {7, 12, 11, false, true, DType::kBF16, DType::kBF16}, true);
  forward_gelu(*backend, gelu_shape(DType::kF32), true);
  EXPECT_EQ(fake.activations, 0);
  EXPECT_EQ(fake.products, 2);
  // The epilogue is not used on GPUs where it is slower either.
  const GemmShape good = gelu_shape(DType::kBF16);
  forward_gelu(*make_cublaslt_gemm(FakeCublasLt::table(), gelu_epilogue_on(12)), good, true);
  EXPECT_EQ(fake.activations, 0);
  forward_gelu(*make_cublaslt_gemm(FakeCublasLt::table(), gelu_epilogue_on(9)), good, true);
  EXPECT_EQ(fake.activations, 1);
}

// The real library makes descriptors without a GPU: it must know all attributes and their sizes.
TEST(CublasLtGemm, TheInstalledLibraryAcceptsOurDescriptors) {
  auto functions = open_cublaslt();
  if (!functions) GTEST_SKIP() << "libcublasLt is not installed";
  FakeCublasLt fake;
  const CublasLt fakes = FakeCublasLt::table();
  EXPECT_GE(functions->get_version(), 120000u);
  functions->create = fakes.create;
  functions->destroy = fakes.destroy;
  functions->matmul_algo_get_heuristic =
      [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
         cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
         cublasLtMatmulHeuristicResult_t* results, int* count) {
        results[0].state = CUBLAS_STATUS_SUCCESS;
        *count = 1;
        return CUBLAS_STATUS_SUCCESS;
      };
  functions->matmul = [](cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                         cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*,
                         const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                         const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t) {
    ++FakeCublasLt::current()->products;
    return CUBLAS_STATUS_SUCCESS;
  };
  const auto backend = make_cublaslt_gemm(*functions);
  for_each_gemm(kSize, [&](const GemmShape& shape) { multiply(*backend, shape, true); });
  EXPECT_EQ(fake.products, 20);
  const GemmShape s = gelu_shape(DType::kBF16);
  const GemmFactors in(s);
  const Gelu gelu = forward_gelu(*backend, s, true);
  kernels::host::DTypeArray dx(DType::kBF16, s.m * s.n);
  gemm_gelu_backward(nullptr, *backend, s, in.a.data(), in.b.data(), gelu.x.data(), dx.data(),
                     nullptr);
  EXPECT_EQ(fake.products, 22);
}

}  // namespace
}  // namespace sluice::kernels::cuda
