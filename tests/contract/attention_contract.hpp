// Causal attention, as every implementation of Kernels computes it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

using kernels::AttentionShape;

inline std::int64_t qkv_elems(const AttentionShape& s) {
  return s.batch * s.time * (s.heads + 2 * s.kv_heads) * s.head_dim;
}
inline std::int64_t out_elems(const AttentionShape& s) {
  return s.batch * s.time * s.heads * s.head_dim;
}

struct AttentionOutput {
  DTypeArray out, lse;
  bool operator==(const AttentionOutput&) const = default;
};

template <class Backend>
AttentionOutput attend(Kernels& kernels, const AttentionShape& s, const DTypeArray& qkv) {
  BackendArray<Backend> in(qkv), out(s.dtype, out_elems(s));
  BackendArray<Backend> lse(DType::kF32, s.batch * s.heads * s.time);
  typename Backend::Memory workspace(kernels.attention_workspace_bytes(s));
  kernels.attention_forward(s, in.data(), out.data(), lse.floats(), workspace.data());
  return {out.read(), lse.read()};
}

template <class Backend>
DTypeArray attend_backward(Kernels& kernels, const AttentionShape& s, const DTypeArray& dout,
                           const DTypeArray& qkv, const AttentionOutput& saved) {
  BackendArray<Backend> in(qkv), grad(dout), out(saved.out), lse(saved.lse);
  BackendArray<Backend> dqkv(s.dtype, qkv_elems(s));
  typename Backend::Memory workspace(kernels.attention_workspace_bytes(s));
  kernels.attention_backward(s, grad.data(), in.data(), out.data(), lse.floats(), dqkv.data(),
                             workspace.data());
  return dqkv.read();
}

// The gradient of sum(dout * out) in fp64. The saved output is the rounded one, as the kernels have
// it.
inline reference::Doubles attention_gradient(const AttentionShape& s, const DTypeArray& dout,
                                             const DTypeArray& qkv, const DTypeArray& out) {
  const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  const auto exact = reference::attention(s, doubles(qkv));
  reference::Doubles grad(static_cast<std::size_t>(qkv_elems(s)));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t kv = h / (s.heads / s.kv_heads);
      const auto at = [&](std::int64_t t, std::int64_t slot, std::int64_t d) {
        return static_cast<std::size_t>((b * s.time + t) * width + slot * s.head_dim + d);
      };
      for (std::int64_t t = 0; t < s.time; ++t) {
        const auto row = static_cast<std::size_t>(((b * s.time + t) * s.heads + h) * s.head_dim);
        double delta = 0.0;
        for (std::int64_t d = 0; d < s.head_dim; ++d) delta += double{dout[row + d]} * out[row + d];
        const double lse = exact.lse[static_cast<std::size_t>((b * s.heads + h) * s.time + t)];
        for (std::int64_t u = 0; u <= t; ++u) {
          double score = 0.0, dp = 0.0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            score += double{qkv[at(t, h, d)]} * qkv[at(u, s.heads + kv, d)];
            dp += double{dout[row + d]} * qkv[at(u, s.heads + s.kv_heads + kv, d)];
          }
          const double p = std::exp(score * scale - lse), ds = p * (dp - delta) * scale;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            grad[at(t, h, d)] += ds * qkv[at(u, s.heads + kv, d)];
            grad[at(u, s.heads + kv, d)] += ds * qkv[at(t, h, d)];
            grad[at(u, s.heads + s.kv_heads + kv, d)] += p * dout[row + d];
          }
        }
      }
    }
  }
  return grad;
}

// Around the tiles of 16, 32, 64 and 128 rows; odd and padded head sizes; every kind of grouping.
inline const AttentionShape kAttentionShapes[] = {
    {1, 1, 1, 1, 1},    {2, 17, 3, 3, 8},   {1, 63, 4, 2, 7},    {1, 64, 2, 1, 16},
    {1, 65, 2, 2, 64},  {2, 66, 4, 2, 24},  {1, 129, 1, 1, 128}, {1, 33, 4, 1, 96},
    {1, 70, 2, 1, 256}, {1, 40, 1, 1, 200}, {1, 145, 2, 1, 40},  {1, 20, 1, 1, 255},
    {2, 100, 4, 2, 32}};
inline const AttentionShape kLongAttention[] = {
    {3, 130, 6, 2, 20}, {1, 257, 4, 1, 128}, {1, 520, 1, 1, 4}, {1, 512, 2, 1, 4}};

template <class Backend>
std::vector<AttentionShape> attention_shapes(DType dtype) {
  std::vector<AttentionShape> shapes(std::begin(kAttentionShapes), std::end(kAttentionShapes));
  if (!Backend::kSlow) {
    shapes.insert(shapes.end(), std::begin(kLongAttention), std::end(kLongAttention));
  }
  for (AttentionShape& shape : shapes) shape.dtype = dtype;
  return shapes;
}

template <class Backend>
class AttentionContract : public KernelsContract<Backend> {};
TYPED_TEST_SUITE_P(AttentionContract);

TYPED_TEST_P(AttentionContract, ForwardMatchesFp64) {
  for (const DType dtype : kActDTypes) {
    for (const AttentionShape& s : attention_shapes<TypeParam>(dtype)) {
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 1));
      const AttentionOutput got = attend<TypeParam>(this->kernels(), s, qkv);
      const auto want = reference::attention(s, doubles(qkv));
      // Outputs average values of about 1; scores are sums of head_dim products of about 1.
      const double allowed = 4e-6 + TypeParam::probability_error(dtype);
      for (std::size_t i = 0; i < want.out.size(); ++i) {
        ASSERT_NEAR(got.out[i], want.out[i], allowed + rounding_at(dtype, want.out[i]))
            << s.time << " x " << s.head_dim << " at " << i;
      }
      for (std::size_t i = 0; i < want.lse.size(); ++i) {
        ASSERT_NEAR(got.lse[i], want.lse[i], TypeParam::kLseError * (1.0 + std::abs(want.lse[i])))
            << s.time << " x " << s.head_dim << " at " << i;
      }
    }
  }
}

// Large scores: without the running maximum exp overflows.
TYPED_TEST_P(AttentionContract, ForwardHoldsForScoresInTheHundreds) {
  for (const DType dtype : kActDTypes) {
    const AttentionShape s{1, 150, 1, 1, 16, dtype};
    const DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 2, 12.0f));
    const AttentionOutput got = attend<TypeParam>(this->kernels(), s, qkv);
    const auto want = reference::attention(s, doubles(qkv));
    // Values of up to 40; a score of up to 1000 is right to 1e-4 or so, and so is a probability.
    const double allowed = 1e-2 + 10.0 * TypeParam::probability_error(dtype);
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], want.out[i], allowed + rounding_at(dtype, want.out[i]));
    }
  }
}

TYPED_TEST_P(AttentionContract, BackwardMatchesFp64) {
  for (const DType dtype : kActDTypes) {
    for (const AttentionShape& s : attention_shapes<TypeParam>(dtype)) {
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 5));
      const DTypeArray dout(dtype, normal_floats(out_elems(s), 6));
      const AttentionOutput saved = attend<TypeParam>(this->kernels(), s, qkv);
      const DTypeArray got = attend_backward<TypeParam>(this->kernels(), s, dout, qkv, saved);
      const auto want = attention_gradient(s, dout, qkv, saved.out);
      // Tensor cores round p and ds, about as large as the gradients that are summed of them.
      // All queries see the first keys, so sums there have sqrt(time) such parts.
      const double parts = std::sqrt(static_cast<double>(s.heads / s.kv_heads * s.time));
      const double allowed =
          TypeParam::probability_error(dtype) == 0.0 ? 2e-5 : 2.0 * rounding_of(dtype);
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], allowed * std::sqrt(parts) + rounding_at(dtype, want[i]))
            << "time " << s.time << " x " << s.head_dim << " at " << i;
      }
    }
  }
}

TYPED_TEST_P(AttentionContract, GivesTheSameBitsInEveryRun) {
  for (const DType dtype : kActDTypes) {
    for (AttentionShape s : {kAttentionShapes[2], kAttentionShapes[5]}) {
      s.dtype = dtype;
      const DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 7));
      const DTypeArray dout(dtype, normal_floats(out_elems(s), 8));
      const AttentionOutput one = attend<TypeParam>(this->kernels(), s, qkv);
      EXPECT_TRUE(attend<TypeParam>(this->kernels(), s, qkv) == one);
      EXPECT_TRUE(attend_backward<TypeParam>(this->kernels(), s, dout, qkv, one) ==
                  attend_backward<TypeParam>(this->kernels(), s, dout, qkv, one));
    }
  }
}

// A later token must not change the result of an earlier one, to the bit; nor that of another
// sequence.
TYPED_TEST_P(AttentionContract, IsCausal) {
  for (const DType dtype : kActDTypes) {
    const AttentionShape s{2, 150, 2, 1, 8, dtype};
    DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 9));
    const AttentionOutput before = attend<TypeParam>(this->kernels(), s, qkv);
    const std::int64_t width = 4 * 8, changed = 90;
    for (std::int64_t i = changed * width; i < s.time * width; ++i) {
      qkv.set(static_cast<std::size_t>(i), 3.0f);
    }
    const AttentionOutput after = attend<TypeParam>(this->kernels(), s, qkv);
    for (std::int64_t t = 0; t < 2 * s.time; ++t) {
      if (t >= changed && t < s.time) continue;
      for (std::int64_t i = t * 16; i < (t + 1) * 16; ++i) {
        ASSERT_EQ(before.out[static_cast<std::size_t>(i)], after.out[static_cast<std::size_t>(i)]);
      }
    }
    EXPECT_FALSE(before == after);
  }
}

TYPED_TEST_P(AttentionContract, NanInAQueryReachesItsOutput) {
  for (const DType dtype : kActDTypes) {
    const AttentionShape s{1, 20, 1, 1, 8, dtype};
    DTypeArray qkv(dtype, normal_floats(qkv_elems(s), 10));
    qkv.set(5 * 24, std::numeric_limits<float>::quiet_NaN());
    const AttentionOutput got = attend<TypeParam>(this->kernels(), s, qkv);
    for (std::size_t d = 0; d < 8; ++d) {
      EXPECT_TRUE(std::isnan(got.out[5 * 8 + d]));
      EXPECT_FALSE(std::isnan(got.out[4 * 8 + d]));
    }
    EXPECT_TRUE(std::isnan(got.lse[5]));
  }
}

TYPED_TEST_P(AttentionContract, RefusesHeadsThatDoNotShareEvenly) {
  const Kernels& kernels = this->kernels();
  EXPECT_THROW(kernels.attention_workspace_bytes({1, 4, 3, 2, 8, DType::kF32}), InternalError);
  EXPECT_THROW(kernels.attention_workspace_bytes({1, 0, 2, 2, 8, DType::kF32}), InternalError);
}

REGISTER_TYPED_TEST_SUITE_P(AttentionContract, ForwardMatchesFp64,
                            ForwardHoldsForScoresInTheHundreds, BackwardMatchesFp64,
                            GivesTheSameBitsInEveryRun, IsCausal, NanInAQueryReachesItsOutput,
                            RefusesHeadsThatDoNotShareEvenly);

}  // namespace sluice::testing
