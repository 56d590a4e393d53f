#include "kernels/cuda/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "tests/kernels/cuda/device_array.hpp"
#include "tests/support/reference_kernels.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;
using host::rounding_at;
using host::rounding_of;

std::int64_t qkv_elems(const AttentionShape& s) {
  return s.batch * s.time * (s.heads + 2 * s.kv_heads) * s.head_dim;
}
std::int64_t out_elems(const AttentionShape& s) {
  return s.batch * s.time * s.heads * s.head_dim;
}

reference::Doubles doubles(const kernels::host::DTypeArray& array) {
  reference::Doubles values;
  for (std::size_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

struct Forward {
  kernels::host::DTypeArray out, lse;
  bool operator==(const Forward&) const = default;
};

Forward forward(const AttentionShape& s, const kernels::host::DTypeArray& qkv) {
  const DeviceDTypeArray in(qkv);
  DeviceDTypeArray out(s.dtype, out_elems(s)), lse(DType::kF32, s.batch * s.heads * s.time);
  DeviceBytes workspace(attention_workspace_bytes(s));
  attention_forward(nullptr, s, in.data(), out.data(), static_cast<float*>(lse.data()),
                    workspace.data());
  return {out.read(), lse.read()};
}

kernels::host::DTypeArray backward(const AttentionShape& s, const kernels::host::DTypeArray& dout,
                                   const kernels::host::DTypeArray& qkv, const Forward& saved) {
  const DeviceDTypeArray in(qkv), grad(dout), out(saved.out), lse(saved.lse);
  DeviceDTypeArray dqkv(s.dtype, qkv_elems(s));
  DeviceBytes workspace(attention_workspace_bytes(s));
  attention_backward(nullptr, s, grad.data(), in.data(), out.data(),
                     static_cast<const float*>(lse.data()), dqkv.data(), workspace.data());
  return dqkv.read();
}

// The gradient of sum(dout * out) in fp64. The saved output is the rounded one, as the kernels have
// it.
reference::Doubles reference_gradient(const AttentionShape& s,
                                      const kernels::host::DTypeArray& dout,
                                      const kernels::host::DTypeArray& qkv,
                                      const kernels::host::DTypeArray& out) {
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

// Around the tiles of 16, 32, 64 and 128 rows; each padded head size, the plain kernels' odd ones;
// every kind of grouping.
const AttentionShape kShapes[] = {{1, 1, 1, 1, 1},     {2, 17, 3, 3, 8},   {1, 63, 4, 2, 7},
                                  {1, 64, 2, 1, 16},   {1, 65, 2, 2, 64},  {2, 66, 4, 2, 24},
                                  {1, 129, 1, 1, 128}, {1, 33, 4, 1, 96},  {1, 70, 2, 1, 256},
                                  {1, 40, 1, 1, 200},  {1, 145, 2, 1, 40}, {1, 20, 1, 1, 255}};

// What rounding the probabilities to the dtype does to an average of `count` values of about 1; the
// plain kernels do not round them.
double weights_rounded(const AttentionShape& s) {
  return s.dtype == DType::kF32 ? 4e-6 : 4.0 * kernels::host::rounding_of(s.dtype);
}

class CudaAttention : public CudaKernelTest, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaAttention,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(CudaAttention, ForwardMatchesFp64) {
  for (AttentionShape s : kShapes) {
    s.dtype = GetParam();
    const kernels::host::DTypeArray qkv(s.dtype, kernels::host::normal_floats(qkv_elems(s), 1));
    const Forward got = forward(s, qkv);
    const auto want = reference::attention(s, doubles(qkv));
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], want.out[i],
                  weights_rounded(s) + kernels::host::rounding_at(s.dtype, want.out[i]))
          << s.time << " x " << s.head_dim << " at " << i;
    }
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      ASSERT_NEAR(got.lse[i], want.lse[i], 4e-6 * (1.0 + std::abs(want.lse[i])))
          << s.time << " x " << s.head_dim << " at " << i;
    }
  }
}

// Large scores: without the running maximum exp overflows.
TEST_P(CudaAttention, ForwardHoldsForScoresInTheHundreds) {
  const AttentionShape s{1, 150, 1, 1, 16, GetParam()};
  const kernels::host::DTypeArray qkv(s.dtype,
                                      kernels::host::normal_floats(qkv_elems(s), 2, 12.0f));
  const Forward got = forward(s, qkv);
  const auto want = reference::attention(s, doubles(qkv));
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    // Values of up to 40; a score of up to 1000 is right to 1e-4 or so, and so is a probability.
    const double allowed =
        2e-2 + 40.0 * (s.dtype == DType::kF32 ? 0.0 : kernels::host::rounding_of(s.dtype));
    ASSERT_NEAR(got.out[i], want.out[i],
                allowed + kernels::host::rounding_at(s.dtype, want.out[i]));
  }
}

TEST_P(CudaAttention, BackwardMatchesFp64) {
  for (AttentionShape s : kShapes) {
    s.dtype = GetParam();
    const kernels::host::DTypeArray qkv(s.dtype, kernels::host::normal_floats(qkv_elems(s), 5));
    const kernels::host::DTypeArray dout(s.dtype, kernels::host::normal_floats(out_elems(s), 6));
    const Forward saved = forward(s, qkv);
    const kernels::host::DTypeArray got = backward(s, dout, qkv, saved);
    const auto want = reference_gradient(s, dout, qkv, saved.out);
    // p and ds, about as large as the gradients that are summed of them, are rounded first. The
    // first keys are seen by all queries, and their sums are of sqrt(time) such parts.
    const double parts = std::sqrt(static_cast<double>(s.heads / s.kv_heads * s.time));
    const double allowed =
        s.dtype == DType::kF32 ? 2e-5 : 2.0 * kernels::host::rounding_of(s.dtype);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i],
                  allowed * std::sqrt(parts) + kernels::host::rounding_at(s.dtype, want[i]))
          << "time " << s.time << " x " << s.head_dim << " at " << i;
    }
  }
}

TEST_P(CudaAttention, MatchesTheHost) {
  const AttentionShape s{2, 100, 4, 2, 32, GetParam()};
  const auto kernels = make_host_kernels({.threads = 1});
  const kernels::host::DTypeArray qkv(s.dtype, kernels::host::normal_floats(qkv_elems(s), 11));
  const kernels::host::DTypeArray dout(s.dtype, kernels::host::normal_floats(out_elems(s), 12));
  Forward host{kernels::host::DTypeArray(s.dtype, out_elems(s)),
               kernels::host::DTypeArray(DType::kF32, s.batch * s.heads * s.time)};
  kernels::host::DTypeArray host_grad(s.dtype, qkv_elems(s));
  const auto workspace = std::make_unique<float[]>(kernels->attention_workspace_bytes(s) / 4 + 64);
  void* aligned = workspace.get();
  std::size_t space = kernels->attention_workspace_bytes(s) + 256;
  aligned = std::align(256, kernels->attention_workspace_bytes(s), aligned, space);
  auto* const lse = static_cast<float*>(host.lse.data());
  kernels->attention_forward(s, qkv.data(), host.out.data(), lse, aligned);
  kernels->attention_backward(s, dout.data(), qkv.data(), host.out.data(), lse, host_grad.data(),
                              aligned);
  const Forward got = forward(s, qkv);
  const kernels::host::DTypeArray grad = backward(s, dout, qkv, got);
  const double allowed = s.dtype == DType::kF32 ? 1e-5 : 8.0 * kernels::host::rounding_of(s.dtype);
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    ASSERT_NEAR(got.out[i], host.out[i], allowed * (1.0 + std::abs(host.out[i]))) << i;
  }
  for (std::size_t i = 0; i < grad.size(); ++i) {
    ASSERT_NEAR(grad[i], host_grad[i], allowed * (1.0 + std::abs(host_grad[i]))) << i;
  }
}

TEST_P(CudaAttention, GivesTheSameBitsInEveryRun) {
  for (AttentionShape s : {kShapes[2], kShapes[5]}) {
    s.dtype = GetParam();
    const kernels::host::DTypeArray qkv(s.dtype, kernels::host::normal_floats(qkv_elems(s), 7));
    const kernels::host::DTypeArray dout(s.dtype, kernels::host::normal_floats(out_elems(s), 8));
    const Forward one = forward(s, qkv);
    EXPECT_TRUE(forward(s, qkv) == one);
    EXPECT_TRUE(backward(s, dout, qkv, one) == backward(s, dout, qkv, one));
  }
}

// A later token must not change what an earlier one sees, to the bit; nor another sequence.
TEST_P(CudaAttention, IsCausal) {
  const AttentionShape s{2, 150, 2, 1, 8, GetParam()};
  kernels::host::DTypeArray qkv(s.dtype, kernels::host::normal_floats(qkv_elems(s), 9));
  const Forward before = forward(s, qkv);
  const std::int64_t width = 4 * 8, changed = 90;
  for (std::int64_t i = changed * width; i < s.time * width; ++i) {
    qkv.set(static_cast<std::size_t>(i), 3.0f);
  }
  const Forward after = forward(s, qkv);
  for (std::int64_t t = 0; t < 2 * s.time; ++t) {
    if (t >= changed && t < s.time) continue;
    for (std::int64_t i = t * 16; i < (t + 1) * 16; ++i) {
      ASSERT_EQ(before.out[static_cast<std::size_t>(i)], after.out[static_cast<std::size_t>(i)]);
    }
  }
  EXPECT_FALSE(before == after);
}

TEST_P(CudaAttention, NanInAQueryReachesItsOutput) {
  const AttentionShape s{1, 20, 1, 1, 8, GetParam()};
  kernels::host::DTypeArray qkv(s.dtype, kernels::host::normal_floats(qkv_elems(s), 10));
  qkv.set(5 * 24, std::numeric_limits<float>::quiet_NaN());
  const Forward got = forward(s, qkv);
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_TRUE(std::isnan(got.out[5 * 8 + d]));
    EXPECT_FALSE(std::isnan(got.out[4 * 8 + d]));
  }
  EXPECT_TRUE(std::isnan(got.lse[5]));
}

TEST(CudaAttentionShapes, WorkspaceIsOneNumberPerQueryAndHead) {
  EXPECT_EQ(attention_workspace_bytes({8, 4096, 16, 8, 64, DType::kBF16}), 8u * 4096 * 16 * 4);
}

TEST(CudaAttentionShapes, RefusesWhatItCannotDo) {
  EXPECT_THROW(attention_workspace_bytes({1, 4, 3, 2, 8, DType::kF32}), InternalError);
  EXPECT_THROW(attention_workspace_bytes({1, 0, 2, 2, 8, DType::kF32}), InternalError);
  EXPECT_THROW(attention_workspace_bytes({1, 4, 2, 2, 257, DType::kF32}), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
