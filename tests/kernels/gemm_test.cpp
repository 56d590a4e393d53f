#include "kernels/host/gemm.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/matmul_cache.hpp"
#include "kernels/host/onednn.hpp"
#include "tests/kernels/dtype_array.hpp"
#include "tests/kernels/guarded_workspace.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::host {
namespace {

struct Factors {
  DTypeArray a, b, bias;
  explicit Factors(const GemmShape& shape)
      : a(shape.dtype, normal_floats(shape.m * shape.k, 1)),
        b(shape.dtype, normal_floats(shape.k * shape.n, 2)),
        bias(shape.dtype, normal_floats(shape.n, 3)) {}
};

DTypeArray multiply(Kernels& kernels, const GemmShape& shape, const Factors& in, bool bias) {
  DTypeArray c(shape.output, shape.m * shape.n);
  GuardedWorkspace workspace(kernels.gemm_workspace_bytes(shape));
  kernels.gemm(shape, in.a.data(), in.b.data(), bias ? in.bias.data() : nullptr, c.data(),
               workspace.data());
  EXPECT_TRUE(c.guard_is_whole());
  return c;
}

void expect_right(const GemmShape& shape, const Factors& in, bool bias, const DTypeArray& c) {
  const auto want = reference::gemm(shape, doubles(in.a), doubles(in.b),
                                    bias ? doubles(in.bias) : reference::Doubles());
  // An fp32 sum of k terms in any order: k roundings at worst, sqrt(k) of them in practice.
  const double sums = 0x1p-23 * (1.0 + std::sqrt(static_cast<double>(shape.k)));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double allowed = sums * want.magnitude[i] + rounding_at(shape.output, want.c[i]);
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

TEST(Gemm, MatchesFp64OnEveryKindAndOddSizes) {
  const auto kernels = make_host_kernels({.threads = 2});
  const Size sizes[] = {{1, 1, 1},    {1, 17, 63},   {17, 1, 5},     {63, 65, 1},
                        {64, 64, 64}, {17, 300, 63}, {129, 257, 31}, {200, 130, 77},
                        {512, 5, 9},  {5, 1024, 9},  {3, 4, 512}};
  for (const Size& size : sizes) {
    for_each_kind(size.m, size.n, size.k, [&](const GemmShape& shape) {
      const Factors in(shape);
      for (const bool bias : {false, true}) {
        expect_right(shape, in, bias, multiply(*kernels, shape, in, bias));
      }
    });
  }
}

// k so long that a panel holds 64 rows: several super-blocks in both directions, with ragged ends.
TEST(Gemm, MatchesFp64OverManyPanels) {
  const auto kernels = make_host_kernels({.threads = 2});
  for_each_kind(70, 66, 16411, [&](const GemmShape& shape) {
    if (shape.output == DType::kF32) return;  // the slow part of the fp64 reference
    const Factors in(shape);
    expect_right(shape, in, true, multiply(*kernels, shape, in, true));
  });
}

TEST(Gemm, BitsDoNotDependOnTheThreadCount) {
  for (const Size& size : {Size{17, 63, 31}, Size{300, 520, 100}, Size{70, 66, 16411}}) {
    for_each_kind(size.m, size.n, size.k, [&](const GemmShape& shape) {
      if (size.k > 10000 && shape.output == DType::kF32) return;
      const Factors in(shape);
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
  const Factors in(shape);
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
  Factors in(shape);
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

TEST(Gemm, CarriesNanAndInfinity) {
  const auto kernels = make_host_kernels({.threads = 2});
  for_each_kind(5, 7, 9, [&](const GemmShape& shape) {
    Factors in(shape);
    in.a.set(0, std::numeric_limits<float>::quiet_NaN());
    const DTypeArray c = multiply(*kernels, shape, in, false);
    EXPECT_TRUE(std::isnan(c[0]));
    EXPECT_FALSE(std::isnan(c[4 * 7 + 6]));
  });
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
  const Factors in(shape);
  const DTypeArray want = multiply(*kernels, shape, in, true);
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(multiply(*kernels, shape, in, true) == want);
    });
  }
}

TEST(Gemm, RefusesEmptyAndUnknownShapes) {
  const auto kernels = make_host_kernels({.threads = 1});
  EXPECT_THROW(kernels->gemm_workspace_bytes(GemmShape{0, 1, 1}), InternalError);
  EXPECT_THROW(
      kernels->gemm_workspace_bytes(GemmShape{1, 1, 1, false, false, DType::kI32, DType::kI32}),
      InternalError);
  EXPECT_THROW(
      kernels->gemm_workspace_bytes(GemmShape{1, 1, 1, false, false, DType::kF32, DType::kBF16}),
      InternalError);
}

TEST(Gemm, AccumulatesIntoFp32WhereAsked) {
  const Parallel parallel(2);
  const Gemm gemm(parallel, Bf16Gemm::kAuto);
  const GemmShape shape{70, 90, 40, false, true, DType::kBF16, DType::kF32};
  const Factors in(shape);
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
  const Factors in(shape);
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
  expect_right(shape, in, bias || accumulate, c);
}

TEST(MatmulCache, MatchesFp64) {
  MatmulCache cache;
  for_each_kind(17, 33, 63, [&](const GemmShape& shape) {
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
  for (const Size& size : {Size{1, 17, 63}, Size{129, 257, 31}, Size{300, 200, 256}}) {
    for_each_kind(size.m, size.n, size.k, [&](const GemmShape& shape) {
      const Factors in(shape);
      for (const bool bias : {false, true}) {
        const DTypeArray c = multiply(*kernels, shape, in, bias);
        expect_right(shape, in, bias, c);
        EXPECT_TRUE(multiply(*three, shape, in, bias) == c);
      }
    });
  }
}

TEST(Arithmetic, NamesLibraryAndInstructionSet) {
  const auto kernels = make_host_kernels({.threads = 1, .bf16_gemm = Bf16Gemm::kViaF32});
  EXPECT_EQ(std::string(kernels->arithmetic()), onednn_version_and_isa() + "/f32");
}

TEST(Zero, ClearsExactlyTheBytes) {
  const auto kernels = make_host_kernels({.threads = 2});
  std::vector<std::uint8_t> bytes((3 << 20) + 9, 0xff);
  kernels->zero(bytes.data() + 1, bytes.size() - 2);
  EXPECT_EQ(bytes.front(), 0xff);
  EXPECT_EQ(bytes.back(), 0xff);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0),
            static_cast<std::ptrdiff_t>(bytes.size()) - 2);
  kernels->zero(nullptr, 0);
}

}  // namespace
}  // namespace sluice::kernels::host
