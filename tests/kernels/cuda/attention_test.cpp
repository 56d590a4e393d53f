// The workspace of attention on a GPU. The contract has its values.
#include "kernels/cuda/attention.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace sluice::kernels::cuda {
namespace {

TEST(CudaAttentionShapes, WorkspaceIsOneNumberPerQueryAndHead) {
  EXPECT_EQ(attention_workspace_bytes({8, 4096, 16, 8, 64, DType::kBF16}), 8u * 4096 * 16 * 4);
}

TEST(CudaAttentionShapes, RefusesHeadsPastTheLargest) {
  EXPECT_THROW(attention_workspace_bytes({1, 4, 2, 2, 257, DType::kF32}), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
