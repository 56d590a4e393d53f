#include "kernels/cuda/gemm_cublaslt.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/kernels/cuda/fake_cublaslt.hpp"
#include "tests/support/dtype_array.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;
using host::rounding_at;

constexpr GemmShape kShape{7, 5, 11, false, false, DType::kBF16, DType::kBF16};

// Arrays at 256-byte addresses, or `offset` elements after one.
struct Arrays {
  GemmShape shape;
  std::int64_t offset;
  kernels::host::DTypeArray a, b, bias;
  std::vector<std::byte> memory;

  explicit Arrays(const GemmShape& s, std::int64_t elems_off = 0)
      : shape(s),
        offset(elems_off),
        a(s.dtype, kernels::host::normal_floats(s.m * s.k, 1)),
        b(s.dtype, kernels::host::normal_floats(s.k * s.n, 2)),
        bias(s.dtype, kernels::host::normal_floats(s.n, 3)),
        memory(4 * kRoom + 256) {}

  static constexpr std::size_t kRoom = 4096;
  void* place(std::size_t index) {
    void* start = memory.data();
    std::size_t space = memory.size();
    std::align(256, 4 * kRoom, start, space);
    return static_cast<std::byte*>(start) + index * kRoom +
           static_cast<std::size_t>(offset) * dtype_bytes(shape.dtype);
  }
  kernels::host::DTypeArray multiply(GemmBackend& backend, bool with_bias,
                                     cudaStream_t stream = nullptr, void* workspace = nullptr) {
    const kernels::host::DTypeArray* const from[] = {&a, &b, &bias};
    for (std::size_t i = 0; i < 3; ++i) {
      std::memcpy(place(i), from[i]->data(), from[i]->size() * dtype_bytes(shape.dtype));
    }
    gemm(stream, backend, shape, place(0), place(1), with_bias ? place(2) : nullptr, place(3),
         workspace);
    kernels::host::DTypeArray c(shape.output, shape.m * shape.n);
    std::memcpy(c.data(), place(3), c.size() * dtype_bytes(shape.output));
    return c;
  }
};

std::vector<GemmShape> all_kinds() {
  std::vector<GemmShape> kinds;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType output : {dtype, DType::kF32}) {
      if (dtype == DType::kF32 && !kinds.empty() && kinds.size() >= 4) continue;
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          kinds.push_back({kShape.m, kShape.n, kShape.k, transpose_a, transpose_b, dtype, output});
        }
      }
    }
  }
  return kinds;
}

TEST(CublasLtGemm, MatchesFp64OnEveryKind) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  const auto kinds = all_kinds();
  EXPECT_EQ(kinds.size(), 20u);
  for (const GemmShape& shape : kinds) {
    for (const bool bias : {false, true}) {
      Arrays in(shape);
      const kernels::host::DTypeArray c = in.multiply(*backend, bias);
      const auto want = reference::gemm(shape, doubles(in.a), doubles(in.b),
                                        bias ? doubles(in.bias) : reference::Doubles());
      for (std::size_t i = 0; i < c.size(); ++i) {
        const double allowed =
            0x1p-22 * want.magnitude[i] + kernels::host::rounding_at(shape.output, want.c[i]);
        ASSERT_NEAR(c[i], want.c[i], allowed)
            << dtype_name(shape.dtype) << " to " << dtype_name(shape.output) << " at " << i
            << (shape.transpose_a ? " A^T" : "") << (shape.transpose_b ? " B^T" : "");
      }
    }
  }
}

// Rows of A eight elements longer than k, of B four, of C six.
TEST(CublasLtGemm, ReadsAndWritesByStrides) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const GemmShape s{kShape.m,    kShape.n,    kShape.k,   transpose_a,
                        transpose_b, DType::kF32, DType::kF32};
      const std::int64_t a_cols = transpose_a ? s.m : s.k, b_cols = transpose_b ? s.k : s.n;
      const GemmStrides strides{.a = a_cols + 8, .b = b_cols + 4, .c = s.n + 6};
      const auto a = kernels::host::normal_floats((transpose_a ? s.k : s.m) * strides.a, 1);
      const auto b = kernels::host::normal_floats((transpose_b ? s.n : s.k) * strides.b, 2);
      const auto bias = kernels::host::normal_floats(s.n, 3);
      std::vector<float> c(static_cast<std::size_t>(s.m * strides.c), -1.0f);
      gemm(nullptr, *backend, s, a.data(), b.data(), bias.data(), c.data(), nullptr, strides);
      for (std::int64_t i = 0; i < s.m; ++i) {
        for (std::int64_t j = 0; j < strides.c; ++j) {
          double want = j < s.n ? bias[static_cast<std::size_t>(j)] : -1.0;
          for (std::int64_t p = 0; j < s.n && p < s.k; ++p) {
            const std::int64_t at = transpose_a ? p * strides.a + i : i * strides.a + p;
            const std::int64_t bt = transpose_b ? j * strides.b + p : p * strides.b + j;
            want += double{a[static_cast<std::size_t>(at)]} * b[static_cast<std::size_t>(bt)];
          }
          ASSERT_NEAR(c[static_cast<std::size_t>(i * strides.c + j)], want, 1e-5);
        }
      }
    }
  }
}

TEST(CublasLtGemm, AsksOnceForAKeyAndKeepsTheAnswer) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  Arrays in(kShape);
  for (int i = 0; i < 3; ++i) in.multiply(*backend, false);
  EXPECT_EQ(fake.heuristics, 1);
  EXPECT_EQ(fake.products, 3);
  in.multiply(*backend, true);
  EXPECT_EQ(fake.heuristics, 2);
  for (const GemmShape& shape : all_kinds()) Arrays(shape).multiply(*backend, false);
  EXPECT_EQ(fake.heuristics, 2 + 19);  // kShape's own kind is known
  Arrays(kShape, 1).multiply(*backend, false);
  EXPECT_EQ(fake.heuristics, 2 + 20);  // other alignments may need other algorithms
}

TEST(CublasLtGemm, AsksForDeterministicAlgorithmsInItsWorkspace) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  Arrays(kShape).multiply(*backend, false);
  EXPECT_EQ(fake.asked.workspace_bytes, gemm_workspace_bytes(*backend, kShape));
  EXPECT_EQ(fake.asked.workspace_bytes, 32u << 20);
  EXPECT_EQ(fake.asked.reductions, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const std::uint32_t bytes : fake.asked.alignment) EXPECT_EQ(bytes, 256u);
  Arrays(kShape, 4).multiply(*backend, false);
  for (const std::uint32_t bytes : fake.asked.alignment) EXPECT_EQ(bytes, 8u);
}

TEST(CublasLtGemm, QueuesOnTheStreamWithTheWorkspaceGiven) {
  FakeCublasLt fake;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  int stream = 0, workspace = 0;
  Arrays(kShape).multiply(*backend, true, reinterpret_cast<cudaStream_t>(&stream), &workspace);
  EXPECT_EQ(fake.stream, reinterpret_cast<cudaStream_t>(&stream));
  EXPECT_EQ(fake.workspace, &workspace);
}

TEST(CublasLtGemm, TouchesNoGpuBeforeTheFirstProductAndLeavesNothingBehind) {
  FakeCublasLt fake;
  {
    const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
    EXPECT_EQ(fake.calls, 0);
    EXPECT_STREQ(backend->name(), "cublaslt-130100");
    Arrays(kShape).multiply(*backend, true);
    EXPECT_GT(fake.live, 0);
  }
  EXPECT_EQ(fake.live, 0);
}

TEST(CublasLtGemm, EveryFailedCallIsReportedAndLeavesNothingBehind) {
  int calls = 0;
  {
    FakeCublasLt fake;
    Arrays(kShape).multiply(*make_cublaslt_gemm(FakeCublasLt::table()), true);
    calls = fake.calls;
  }
  EXPECT_GE(calls, 17);
  for (int failing = 1; failing <= calls; ++failing) {
    FakeCublasLt fake;
    {
      const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
      fake.failing_call = failing;
      Arrays in(kShape);
      EXPECT_THROW(in.multiply(*backend, true), DeviceError) << failing;
      fake.failing_call = 0;
      EXPECT_NO_THROW(in.multiply(*backend, true)) << failing;
    }
    EXPECT_EQ(fake.live, 0) << failing;
  }
}

TEST(CublasLtGemm, SaysWhichProductHasNoAlgorithm) {
  FakeCublasLt fake;
  fake.has_algorithm = false;
  const auto backend = make_cublaslt_gemm(FakeCublasLt::table());
  try {
    Arrays(kShape).multiply(*backend, false);
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

Gelu forward_gelu(GemmBackend& backend, Arrays& in, bool bias) {
  const GemmShape& s = in.shape;
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
      Arrays in(gelu_shape(dtype));
      const GemmShape& s = in.shape;
      fake.has_activations = true;
      const Gelu fused = forward_gelu(*backend, in, bias);
      kernels::host::DTypeArray fused_dx(dtype, s.m * s.n), dx(dtype, s.m * s.n);
      gemm_gelu_backward(nullptr, *backend, s, in.a.data(), in.b.data(), fused.x.data(),
                         fused_dx.data(), nullptr);
      EXPECT_EQ(fake.activations, expected += 2);
      // If the library has no such epilogue: a product and a kernel.
      fake.has_activations = false;
      const Gelu apart = forward_gelu(*plain, in, bias);
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
  Arrays odd({7, 12, 11, false, true, DType::kBF16, DType::kBF16});
  forward_gelu(*backend, odd, true);
  Arrays wide({7, 16, 11, false, true, DType::kF32, DType::kF32});
  forward_gelu(*backend, wide, true);
  EXPECT_EQ(fake.activations, 0);
  EXPECT_EQ(fake.products, 2);
  // The epilogue is not used on GPUs where it is slower either.
  Arrays good(gelu_shape(DType::kBF16));
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
  for (const GemmShape& shape : all_kinds()) Arrays(shape).multiply(*backend, true);
  EXPECT_EQ(fake.products, 20);
  Arrays in(gelu_shape(DType::kBF16));
  const Gelu gelu = forward_gelu(*backend, in, true);
  kernels::host::DTypeArray dx(DType::kBF16, in.shape.m * in.shape.n);
  gemm_gelu_backward(nullptr, *backend, in.shape, in.a.data(), in.b.data(), gelu.x.data(),
                     dx.data(), nullptr);
  EXPECT_EQ(fake.products, 22);
}

}  // namespace
}  // namespace sluice::kernels::cuda
