#include "kernels/host/attention.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tests/kernels/dtype_array.hpp"
#include "tests/kernels/guarded_workspace.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::host {
namespace {

std::int64_t qkv_elems(const AttentionShape& s) {
  return s.batch * s.time * (s.heads + 2 * s.kv_heads) * s.head_dim;
}
std::int64_t out_elems(const AttentionShape& s) {
  return s.batch * s.time * s.heads * s.head_dim;
}

struct Forward {
  DTypeArray out, lse;
  bool operator==(const Forward&) const = default;
};

Forward forward(const Parallel& parallel, const AttentionShape& s, const DTypeArray& qkv) {
  Forward result{DTypeArray(s.dtype, out_elems(s)),
                 DTypeArray(DType::kF32, s.batch * s.heads * s.time)};
  GuardedWorkspace workspace(attention_workspace_bytes(parallel, s));
  attention_forward(parallel, s, qkv.data(), result.out.data(),
                    static_cast<float*>(result.lse.data()), workspace.data());
  EXPECT_TRUE(result.out.guard_is_whole() && result.lse.guard_is_whole());
  return result;
}

DTypeArray backward(const Parallel& parallel, const AttentionShape& s, const DTypeArray& dout,
                    const DTypeArray& qkv, const Forward& saved) {
  DTypeArray dqkv(s.dtype, qkv_elems(s));
  GuardedWorkspace workspace(attention_workspace_bytes(parallel, s));
  attention_backward(parallel, s, dout.data(), qkv.data(), saved.out.data(),
                     static_cast<const float*>(saved.lse.data()), dqkv.data(), workspace.data());
  EXPECT_TRUE(dqkv.guard_is_whole());
  return dqkv;
}

reference::Doubles doubles(const DTypeArray& array) {
  reference::Doubles values;
  for (std::size_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

// Around the blocks of 64 query rows, with odd head sizes and every kind of grouping.
const AttentionShape kShapes[] = {{1, 1, 1, 1, 1},     {2, 17, 3, 3, 8},  {1, 63, 4, 2, 7},
                                  {1, 64, 2, 1, 16},   {1, 65, 2, 2, 64}, {3, 130, 6, 2, 20},
                                  {1, 257, 4, 1, 128}, {1, 520, 1, 1, 4}, {1, 512, 2, 1, 4}};

class AttentionOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOf,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(AttentionOf, ForwardMatchesFp64) {
  const Parallel parallel(2);
  for (AttentionShape s : kShapes) {
    s.dtype = GetParam();
    const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 1));
    const Forward got = forward(parallel, s, qkv);
    const auto want = reference::attention(s, doubles(qkv));
    // Outputs average values of about 1; scores are sums of head_dim products of about 1.
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], want.out[i], 4e-6 + rounding_of(s.dtype) * std::abs(want.out[i]))
          << s.time << " at " << i;
    }
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      ASSERT_NEAR(got.lse[i], want.lse[i], 2e-6 * (1.0 + std::abs(want.lse[i]))) << s.time;
    }
  }
}

// Large scores: without the running maximum exp overflows.
TEST_P(AttentionOf, ForwardHoldsForScoresInTheHundreds) {
  const AttentionShape s{1, 70, 1, 1, 16, GetParam()};
  const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 2, 12.0f));
  const Forward got = forward(Parallel(1), s, qkv);
  const auto want = reference::attention(s, doubles(qkv));
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    // Scores of up to 1000 are right to 1e-4 or so in fp32, and so is each probability.
    ASSERT_NEAR(got.out[i], want.out[i], 1e-2 + rounding_of(s.dtype) * std::abs(want.out[i]));
  }
}

TEST(Attention, BackwardMatchesFiniteDifferencesOfFp64) {
  for (const AttentionShape& shape : kShapes) {
    AttentionShape s = shape;
    s.dtype = DType::kF32;
    if (s.time > 200) continue;
    const Parallel parallel(2);
    const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 3));
    const DTypeArray dout(s.dtype, normal_floats(out_elems(s), 4));
    const DTypeArray got = backward(parallel, s, dout, qkv, forward(parallel, s, qkv));
    const auto weights = doubles(dout);
    const auto loss = [&](const reference::Doubles& values) {
      const auto result = reference::attention(s, values);
      double sum = 0.0;
      for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * result.out[i];
      return sum;
    };
    const auto values = doubles(qkv);
    // Some forty elements spread over batch, time, q, k and v.
    const std::size_t step = std::max<std::size_t>(1, values.size() / 41);
    for (std::size_t i = 0; i < values.size(); i += step) {
      const double want = reference::derivative(loss, values, i);
      ASSERT_NEAR(got[i], want, 2e-5 * (1.0 + std::abs(want))) << "time " << s.time << " at " << i;
    }
  }
}

// With 16-bit storage only: inputs are the same numbers, saved output and results are rounded.
void expect_backward_near_fp32(DType dtype) {
  for (AttentionShape s : kShapes) {
    const Parallel parallel(2);
    s.dtype = dtype;
    const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 5));
    const DTypeArray dout(s.dtype, normal_floats(out_elems(s), 6));
    const DTypeArray got = backward(parallel, s, dout, qkv, forward(parallel, s, qkv));
    s.dtype = DType::kF32;
    const auto widen = [](const DTypeArray& from) {
      DTypeArray to(DType::kF32, static_cast<std::int64_t>(from.size()));
      for (std::size_t i = 0; i < from.size(); ++i) to.set(i, from[i]);
      return to;
    };
    const DTypeArray wide = widen(qkv);
    const DTypeArray want = backward(parallel, s, widen(dout), wide, forward(parallel, s, wide));
    // The saved output's rounding moves delta by half a rounding times sqrt(head_dim), and a
    // gradient by the probabilities that it is multiplied with.
    const double allowed = rounding_of(dtype) * std::sqrt(static_cast<double>(s.head_dim));
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], allowed + rounding_at(dtype, want[i]))
          << "time " << s.time << " at " << i;
    }
  }
}

TEST(Attention, Bf16BackwardStaysNearFp32) {
  expect_backward_near_fp32(DType::kBF16);
}

TEST(Attention, Fp16BackwardStaysNearFp32) {
  expect_backward_near_fp32(DType::kF16);
}

TEST_P(AttentionOf, BitsDoNotDependOnTheThreadCount) {
  for (AttentionShape s : kShapes) {
    s.dtype = GetParam();
    const DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 7));
    const DTypeArray dout(s.dtype, normal_floats(out_elems(s), 8));
    const Forward one = forward(Parallel(1), s, qkv);
    const DTypeArray grad = backward(Parallel(1), s, dout, qkv, one);
    for (const int threads : {2, 3}) {
      EXPECT_TRUE(forward(Parallel(threads), s, qkv) == one) << threads;
      EXPECT_TRUE(backward(Parallel(threads), s, dout, qkv, one) == grad) << threads;
    }
  }
}

// A later token must not change what an earlier one sees, to the bit.
TEST_P(AttentionOf, IsCausal) {
  const AttentionShape s{1, 100, 2, 1, 8, GetParam()};
  DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 9));
  const Forward before = forward(Parallel(2), s, qkv);
  const std::int64_t width = 4 * 8, changed = 90;
  for (std::int64_t i = changed * width; i < s.time * width; ++i) {
    qkv.set(static_cast<std::size_t>(i), 3.0f);
  }
  const Forward after = forward(Parallel(2), s, qkv);
  for (std::int64_t i = 0; i < changed * 16; ++i) {
    ASSERT_EQ(before.out[static_cast<std::size_t>(i)], after.out[static_cast<std::size_t>(i)]);
  }
  EXPECT_FALSE(before == after);
}

TEST(Attention, NanInAQueryReachesItsOutput) {
  const AttentionShape s{1, 20, 1, 1, 8, DType::kF32};
  DTypeArray qkv(s.dtype, normal_floats(qkv_elems(s), 10));
  qkv.set(5 * 24, std::numeric_limits<float>::quiet_NaN());
  const Forward got = forward(Parallel(1), s, qkv);
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_TRUE(std::isnan(got.out[5 * 8 + d]));
    EXPECT_FALSE(std::isnan(got.out[4 * 8 + d]));
  }
  EXPECT_TRUE(std::isnan(got.lse[5]));
}

TEST(Attention, WorkspaceGrowsWithTimeAndNotWithItsSquare) {
  const Parallel parallel(2);
  const AttentionShape s{8, 4096, 16, 8, 64, DType::kBF16};
  const std::uint64_t panels = 4 * 4096 * 64 * 4, scores = 2 * 64 * 4096 * 4;
  EXPECT_LE(attention_workspace_bytes(parallel, s), 2 * (panels + scores + 128 * kKiB));
}

TEST(Attention, RefusesHeadsThatDoNotShareEvenly) {
  EXPECT_THROW(attention_workspace_bytes(Parallel(1), {1, 4, 3, 2, 8, DType::kF32}), InternalError);
  EXPECT_THROW(attention_workspace_bytes(Parallel(1), {1, 0, 2, 2, 8, DType::kF32}), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::host
