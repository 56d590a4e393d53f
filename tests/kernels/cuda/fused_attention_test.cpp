// The library's attention compared with our own, on a GPU: shapes that take several slices, and
// long ones that the host would be slow to check.
#include "kernels/cuda/fused_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "kernels/cuda/attention.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

double relative_difference(const kernels::host::DTypeArray& a, const kernels::host::DTypeArray& b) {
  double difference = 0.0, magnitude = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    magnitude += b[i] * b[i];
  }
  return std::sqrt(difference / magnitude);
}

class FusedAttentionTest : public ::testing::Test {
 protected:
  struct Passes {
    kernels::host::DTypeArray out, lse, dqkv;
    bool operator==(const Passes&) const = default;
  };

  void SetUp() override {
    if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
    if (!open_cudnn()) GTEST_SKIP() << "cuDNN is not installed";
    library_ = open_fused_attention();
    ASSERT_NE(library_, nullptr);
  }

  // Runs both passes, by the library or by our own kernels.
  Passes run(const AttentionShape& s, bool by_library) {
    const std::int64_t rows = s.batch * s.time, width = s.heads * s.head_dim;
    const std::int64_t packed = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const DeviceDTypeArray qkv(
        kernels::host::DTypeArray(s.dtype, kernels::host::normal_floats(rows * packed, 1)));
    const DeviceDTypeArray dout(
        kernels::host::DTypeArray(s.dtype, kernels::host::normal_floats(rows * width, 2)));
    DeviceDTypeArray out(s.dtype, rows * width), lse(DType::kF32, rows * s.heads);
    DeviceDTypeArray dqkv(s.dtype, rows * packed);
    auto* const sums = static_cast<float*>(lse.data());
    const std::uint64_t bytes =
        by_library ? library_->workspace_bytes(s) : attention_workspace_bytes(s);
    DeviceBytes workspace(bytes);
    if (by_library) {
      EXPECT_TRUE(library_->forward(nullptr, s, qkv.data(), out.data(), sums, workspace.data()));
      EXPECT_TRUE(library_->backward(nullptr, s, dout.data(), qkv.data(), out.data(), sums,
                                     dqkv.data(), workspace.data()));
    } else {
      attention_forward(nullptr, s, qkv.data(), out.data(), sums, workspace.data());
      attention_backward(nullptr, s, dout.data(), qkv.data(), out.data(), sums, dqkv.data(),
                         workspace.data());
    }
    return {out.read(), lse.read(), dqkv.read()};
  }

  void expect_same(const AttentionShape& shape) {
    const Passes library = run(shape, true), own = run(shape, false);
    // Both round probabilities and results to 16 bits.
    const double tolerance = shape.dtype == DType::kBF16 ? 1.0 / 64 : 1.0 / 512;
    EXPECT_LT(relative_difference(library.out, own.out), tolerance);
    EXPECT_LT(relative_difference(library.lse, own.lse), 1e-5);
    EXPECT_LT(relative_difference(library.dqkv, own.dqkv), tolerance);
    EXPECT_TRUE(run(shape, true) == library) << "not the same bits again";
  }

  std::unique_ptr<FusedAttention> library_;
};

TEST_F(FusedAttentionTest, SlicesOfTheBatch) {
  const AttentionShape shape{3, 2048, 16, 16, 64, DType::kBF16};
  ASSERT_EQ(backward_slice(shape)->batch, 1);
  expect_same(shape);
}

TEST_F(FusedAttentionTest, SlicesOfTheHeads) {
  const AttentionShape shape{2, 4096, 16, 4, 128, DType::kBF16};
  ASSERT_EQ(backward_slice(shape)->kv_heads, 2);
  expect_same(shape);
}

// Statistics of a slice begin anywhere.
TEST_F(FusedAttentionTest, SlicesOfOddLengths) {
  const AttentionShape of_batch{3, 2047, 17, 17, 64, DType::kBF16};
  ASSERT_EQ(backward_slice(of_batch)->batch, 1);
  expect_same(of_batch);
  const AttentionShape of_heads{1, 4095, 9, 9, 64, DType::kBF16};
  ASSERT_EQ(backward_slice(of_heads)->kv_heads, 3);
  expect_same(of_heads);
}

TEST_F(FusedAttentionTest, OddShapesInHalf) {
  expect_same({3, 100, 6, 2, 64, DType::kF16});
  expect_same({1, 63, 3, 3, 80, DType::kF16});
  expect_same({2, 1000, 8, 1, 40, DType::kF16});
}

TEST_F(FusedAttentionTest, RefusesShapesWithoutKernels) {
  const AttentionShape f32{1, 16, 2, 2, 64, DType::kF32};
  EXPECT_EQ(library_->workspace_bytes(f32), 0u);
  EXPECT_FALSE(library_->forward(nullptr, f32, nullptr, nullptr, nullptr, nullptr));
  const AttentionShape odd{1, 16, 2, 2, 60, DType::kBF16};
  EXPECT_FALSE(library_->forward(nullptr, odd, nullptr, nullptr, nullptr, nullptr));
  const AttentionShape longest{1, 16384, 8, 1, 64, DType::kBF16};
  EXPECT_FALSE(
      library_->backward(nullptr, longest, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr));
}

}  // namespace
}  // namespace sluice::kernels::cuda
