// Products on the host: threads, panels and oneDNN. The contract has their values.
#include "kernels/host/gemm.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/matmul_cache.hpp"
#include "kernels/host/onednn.hpp"
#include "tests/contract/gemm_contract.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::kernels::host {
namespace {

using testing::expect_gemm;
using testing::for_each_gemm;
using testing::GemmFactors;
using testing::GemmSize;

DTypeArray multiply(Kernels& kernels, const GemmShape& shape, const GemmFactors& in, bool bias) {
  return testing::multiply<HostBackend>(kernels, shape, in, bias);
}

// k so long that a panel holds 64 rows: several super-blocks in both directions, with ragged ends.
TEST(Gemm, MatchesFp64OverManyPanels) {
  const auto kernels = make_host_kernels({.threads = 2});
  for_each_gemm({70, 66, 16411}, [&](const GemmShape& shape) {
    if (shape.output == DType::kF32) return;  // the slow part of the fp64 reference
    const GemmFactors in(shape);
    expect_gemm(shape, in, true, multiply(*kernels, shape, in, true));
  });
}

TEST(Gemm, BitsDoNotDependOnTheThreadCount) {
  for (const GemmSize& size :
       {GemmSize{17, 63, 31}, GemmSize{300, 520, 100}, GemmSize{70, 66, 16411}}) {
    for_each_gemm(size, [&](const GemmShape& shape) {
      if (size.k > 10000 && shape.output == DType::kF32) return;
      const GemmFactors in(shape);
      const DTypeArray one = multiply(*make_host_kernels({.threads = 1}), shape, in, true);
      for (const int threads : {2, 3}) {
        const auto kernels = make_host_kernels({.threads = threads});
        EXPECT_TRUE(multiply(*kernels, shape, in, true) == one) << threads;
      }
    });
  }
}

// Long enough for every worker to wake up and take tiles, each into its own part of the workspace.
TEST(Gemm, WorkersDoNotDisturbEachOther) {
  const GemmShape shape{640, 1024, 96, false, true, DType::kBF16, DType::kBF16};
  const GemmFactors in(shape);
  const DTypeArray one = multiply(*make_host_kernels({.threads = 1}), shape, in, true);
  const auto kernels = make_host_kernels({.threads = 4});
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(multiply(*kernels, shape, in, true) == one) << "run " << i;
  }
}

// bf16 goes through the same fp32 sums: exact powers and small integers leave nothing to round.
TEST(Gemm, RoundsBf16OutputOnceToEvenAfterTheBias) {
  const auto kernels = make_host_kernels({.threads = 1, .bf16_gemm = Bf16Gemm::kViaF32});
  const GemmShape shape{1, 3, 2, false, false, DType::kBF16, DType::kBF16};
  GemmFactors in(shape);
  // Sums 256 + {1, 3, 1}; with the bias 0.5 the last one passes the tie at 257.
  const float b[] = {256, 256, 256, 1, 3, 1}, bias[] = {0, 0, 0.5f};
  for (std::size_t i = 0; i < 6; ++i) in.b.set(i, b[i]);
  for (std::size_t i = 0; i < 3; ++i) in.bias.set(i, bias[i]);
  in.a.set(0, 1.0f);
  in.a.set(1, 1.0f);
  const DTypeArray c = multiply(*kernels, shape, in, true);
  EXPECT_EQ(c[0], 256.0f);
  EXPECT_EQ(c[1], 260.0f);
  EXPECT_EQ(c[2], 258.0f);
}

TEST(Gemm, KeepsItsWorkspaceToAFewMiB) {
  const auto kernels = make_host_kernels({.threads = 4});
  const GemmShape shape{8192, 50304, 4096, false, true, DType::kBF16, DType::kBF16};
  // Two panels of 256 rows, a cache line of padding each, and four tiles.
  EXPECT_LE(kernels->gemm_workspace_bytes(shape), 2 * (4 * kMiB + 256 * 64) + 4 * 128 * kKiB);
  const GemmShape wide{8192, 50304, 4096, false, true, DType::kF32, DType::kF32};
  EXPECT_EQ(kernels->gemm_workspace_bytes(wide), 0u);
  // Columns 512 floats apart are copied, a panel at a time.
  const GemmShape across{8192, 50304, 4096, true, true, DType::kF32, DType::kF32};
  EXPECT_LE(kernels->gemm_workspace_bytes(across), 4 * kMiB + 4096 * 64);
}

TEST(Gemm, ComputesForSeveralCallersAtOnce) {
  const auto kernels = make_host_kernels({.threads = 2});
  const GemmShape shape{130, 140, 64, false, true, DType::kBF16, DType::kBF16};
  const GemmFactors in(shape);
  const DTypeArray want = multiply(*kernels, shape, in, true);
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(multiply(*kernels, shape, in, true) == want);
    });
  }
}

TEST(Gemm, AccumulatesIntoFp32WhereAsked) {
  const Parallel parallel(2);
  const Gemm gemm(parallel, Bf16Gemm::kAuto);
  const GemmShape shape{70, 90, 40, false, true, DType::kBF16, DType::kF32};
  const GemmFactors in(shape);
  DTypeArray c(DType::kF32, shape.m * shape.n), once = c;
  Product product = product_of(shape, in.a.data(), in.b.data(), nullptr, once.data());
  GuardedWorkspace workspace(gemm.workspace_bytes(product));
  gemm.run(product, workspace.data());
  product.c = c.data();
  gemm.run(product, workspace.data());
  product.accumulate = true;
  gemm.run(product, workspace.data());
  for (std::size_t i = 0; i < c.size(); ++i) {
    ASSERT_NEAR(c[i], 2.0 * once[i], 1e-5 * (1.0 + std::abs(once[i])));
  }
}

TEST(GemmCut, CoversEveryElementOnce) {
  for (const std::int64_t extent : {1, 15, 16, 17, 64, 65, 127, 128, 129, 1000, 4096, 50257}) {
    for (const std::int64_t most : {64, 128, 256}) {
      const Cut cut(extent, most, 16);
      std::int64_t next = 0;
      for (std::int64_t part = 0; part < cut.parts; ++part) {
        EXPECT_EQ(cut.begin(part), next);
        EXPECT_GT(cut.length(part), 0);
        EXPECT_LE(cut.length(part), most);
        next += cut.length(part);
      }
      EXPECT_EQ(next, extent);
    }
    for (const std::int64_t other : {1, 64, 100, 5000}) {
      const Tiles tiles = Tiles::of(extent, other);
      EXPECT_LE(tiles.count(), Tiles::most(extent, other));
    }
  }
}

// The primitives of the native path, by fp32 on any CPU and by bf16 where there is one.
void expect_matmul_right(MatmulCache& cache, const GemmShape& shape, bool bias, bool accumulate) {
  const GemmFactors in(shape);
  MatmulKey key;
  key.m = shape.m, key.n = shape.n, key.k = shape.k;
  key.a_stride = shape.transpose_a ? shape.m : shape.k;
  key.b_stride = shape.transpose_b ? shape.k : shape.n;
  key.c_stride = shape.n;
  key.transpose_a = shape.transpose_a, key.transpose_b = shape.transpose_b;
  key.bias = bias, key.accumulate = accumulate;
  key.dtype = key.bias_dtype = shape.dtype;
  key.c_dtype = shape.output;
  // Accumulation starts from the bias: the same reference serves.
  DTypeArray c(shape.output, shape.m * shape.n);
  if (accumulate) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      c.set(i, in.bias[i % static_cast<std::size_t>(shape.n)]);
    }
  }
  GuardedWorkspace scratchpad(cache.scratchpad_bytes(key));
  cache.run(key, in.a.data(), in.b.data(), in.bias.data(), c.data(), scratchpad.data());
  EXPECT_TRUE(c.guard_is_whole());
  expect_gemm(shape, in, bias || accumulate, c);
}

TEST(MatmulCache, MatchesFp64) {
  MatmulCache cache;
  for_each_gemm({17, 33, 63}, [&](const GemmShape& shape) {
    if (shape.dtype == DType::kF16) return;  // always via fp32
    if (shape.dtype == DType::kBF16 && !onednn_has_bf16()) return;
    expect_matmul_right(cache, shape, false, false);
    expect_matmul_right(cache, shape, true, false);
    if (shape.output == DType::kF32) expect_matmul_right(cache, shape, false, true);
  });
}

TEST(NativeBf16, IsRefusedWhereOneDnnHasNone) {
  if (onednn_has_bf16()) GTEST_SKIP() << "this CPU has a bf16 matmul";
  EXPECT_THROW(make_host_kernels({.threads = 1, .bf16_gemm = Bf16Gemm::kNative}), InputError);
}

TEST(NativeBf16, MatchesFp64AndItselfForAnyThreadCount) {
  if (!onednn_has_bf16()) GTEST_SKIP() << "oneDNN has no bf16 matmul for this CPU";
  const auto kernels = make_host_kernels({.threads = 2, .bf16_gemm = Bf16Gemm::kNative});
  const auto three = make_host_kernels({.threads = 3, .bf16_gemm = Bf16Gemm::kNative});
  for (const GemmSize& size :
       {GemmSize{1, 17, 63}, GemmSize{129, 257, 31}, GemmSize{300, 200, 256}}) {
    for_each_gemm(size, [&](const GemmShape& shape) {
      const GemmFactors in(shape);
      for (const bool bias : {false, true}) {
        const DTypeArray c = multiply(*kernels, shape, in, bias);
        expect_gemm(shape, in, bias, c);
        EXPECT_TRUE(multiply(*three, shape, in, bias) == c);
      }
    });
  }
}

TEST(Arithmetic, NamesLibraryAndInstructionSet) {
  const auto kernels = make_host_kernels({.threads = 1, .bf16_gemm = Bf16Gemm::kViaF32});
  EXPECT_EQ(std::string(kernels->arithmetic()), onednn_version_and_isa() + "/f32");
}

}  // namespace
}  // namespace sluice::kernels::host
