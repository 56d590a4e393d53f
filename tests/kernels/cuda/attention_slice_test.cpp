#include <gtest/gtest.h>

#include "base/error.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/fused_attention.hpp"

namespace sluice::kernels::cuda {
namespace {

AttentionShape shape_of(std::int64_t batch, std::int64_t time, std::int64_t heads,
                        std::int64_t kv_heads) {
  return {batch, time, heads, kv_heads, 128, DType::kBF16};
}

void expect_slice(const AttentionShape& shape, std::int64_t batch, std::int64_t kv_heads) {
  const auto slice = backward_slice(shape);
  ASSERT_TRUE(slice.has_value());
  EXPECT_EQ(slice->batch, batch);
  EXPECT_EQ(slice->kv_heads, kv_heads);
}

TEST(BackwardSlice, IsAllThatKeepsTheScores) {
  expect_slice(shape_of(4, 512, 8, 8), 4, 8);      // 16 MiB
  expect_slice(shape_of(2, 2048, 16, 16), 2, 16);  // 256 MiB
  expect_slice(shape_of(8, 2048, 16, 16), 2, 16);  // of whole sequences
  expect_slice(shape_of(9, 2048, 16, 16), 1, 16);  // that divide the batch
  expect_slice(shape_of(9, 1024, 16, 16), 3, 16);  // 32 MiB each, eight would fit
  expect_slice(shape_of(4, 4096, 32, 32), 1, 8);   // 32 MiB a head
  expect_slice(shape_of(4, 4096, 32, 8), 1, 2);    // of keys, with four of queries each
  expect_slice(shape_of(1, 4096, 24, 12), 1, 4);   // that divide the heads
  expect_slice(shape_of(1, 11584, 8, 8), 1, 1);    // 255.9 MiB
  expect_slice(shape_of(1, 8192, 32, 8), 1, 1);    // 512 MiB for one of keys
  expect_slice(shape_of(2, 8192, 4, 1), 1, 1);
}

TEST(BackwardSlice, OfOtherSizesForTheBench) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const AttentionShape shape = shape_of(4, 4096, 32, 32);  // 32 MiB a head
  EXPECT_EQ(backward_slice(shape, 32 * kMiB)->kv_heads, 1);
  EXPECT_EQ(backward_slice(shape, 2048 * kMiB)->batch, 2);
  EXPECT_EQ(fused_attention_bytes(shape, 64 * kMiB), 64 * kMiB + 2 * 4096 * 4 + 64 * 1024);
}

TEST(BackwardSlice, PaddedScoresCount) {
  expect_slice(shape_of(64, 127, 1, 1), 64, 1);
  // 128 x 128 scores: 32 KiB a head.
  expect_slice(shape_of(8192, 127, 1, 1), 8192, 1);
  expect_slice(shape_of(8193, 127, 1, 1), 2731, 1);
}

TEST(BackwardSlice, NoneForLongSequences) {
  EXPECT_FALSE(backward_slice(shape_of(1, 16385, 8, 8)).has_value());
  EXPECT_FALSE(backward_slice(shape_of(1, 8192, 8, 1)).has_value());  // 1 GiB for one of keys
  EXPECT_FALSE(backward_slice(shape_of(1, std::int64_t{1} << 40, 1, 1)).has_value());
}

TEST(FusedAttentionBytes, FollowTheSlice) {
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_EQ(fused_attention_bytes(shape_of(8, 2048, 16, 16)),
            256 * kMiB + 2 * 16 * 2048 * 4 + 64 * 1024);
  // With the gradients of keys and values for each head of queries.
  EXPECT_EQ(fused_attention_bytes(shape_of(4, 4096, 32, 8)),
            256 * kMiB + 8 * 4096 * 4 + 2 * 8 * 4096 * 128 * 4 + 64 * 1024);
  // Here the forward pass alone is fused.
  EXPECT_EQ(fused_attention_bytes(shape_of(1, 65536, 8, 8)), 64u * 1024);
}

TEST(CudaAttentionShapes, WorkspaceIsOneNumberPerQueryAndHead) {
  EXPECT_EQ(attention_workspace_bytes({8, 4096, 16, 8, 64, DType::kBF16}), 8u * 4096 * 16 * 4);
}

TEST(CudaAttentionShapes, RefusesHeadsPastTheLargest) {
  EXPECT_THROW(attention_workspace_bytes({1, 4, 2, 2, 257, DType::kF32}), InternalError);
}

TEST(BackwardSlice, RefusesShapesWithoutElements) {
  EXPECT_THROW(backward_slice(shape_of(0, 16, 1, 1)), InternalError);
  EXPECT_THROW(backward_slice(shape_of(1, 0, 1, 1)), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
