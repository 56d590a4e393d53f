// The head on a GPU: slices, and targets outside the vocabulary. The contract has its values.
#include "kernels/cuda/head.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/gemm_plain.hpp"
#include "tests/contract/head_contract.hpp"
#include "tests/kernels/cuda/cuda_backend.hpp"

namespace sluice::kernels::cuda {
namespace {

using testing::HeadBatch;
using testing::HeadResult;
using testing::kHeadLossScale;
using testing::kHeadShapes;

// Several slices of rows and of the vocabulary, the last ones shorter.
constexpr HeadSlices kNarrow{.logits_bytes = 1, .least = 32};

HeadResult run(const HeadBatch& in, const HeadSlices& slices = kNarrow) {
  const auto gemm = make_plain_gemm();
  const HeadShape& s = in.shape;
  const DeviceDTypeArray x(in.x), w(in.w);
  const DeviceArray<std::int32_t> targets(in.targets);
  DeviceDTypeArray lse(DType::kF32, s.rows), dx(s.dtype, s.rows * s.hidden);
  DeviceDTypeArray dw(s.dtype, s.vocab * s.hidden);
  DeviceArray<double> loss_sum(std::vector<double>(1));
  const std::uint64_t bytes = head_workspace_bytes(*gemm, s, slices);
  {
    DeviceBytes workspace(bytes);
    head_forward(nullptr, *gemm, s, x.data(), w.data(), targets.data(), kHeadLossScale,
                 loss_sum.data(), static_cast<float*>(lse.data()), dx.data(), workspace.data(),
                 slices);
  }
  {
    DeviceBytes workspace(bytes);
    head_backward_weight(nullptr, *gemm, s, x.data(), w.data(), targets.data(), kHeadLossScale,
                         static_cast<const float*>(lse.data()), dw.data(), workspace.data(),
                         slices);
  }
  return {loss_sum.read()[0], lse.read(), dx.read(), dw.read()};
}

class CudaHead : public CudaKernelTest, public ::testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaHead,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// The plain product's sums do not depend on the slice, and so no result does. The contract holds
// the default slices to fp64.
TEST_P(CudaHead, BitsDoNotDependOnTheSliceOrTheRun) {
  for (HeadShape s : kHeadShapes) {
    s.dtype = GetParam();
    const HeadBatch in(s);
    const HeadResult one = run(in);
    EXPECT_TRUE(run(in) == one);
    EXPECT_TRUE(run(in, HeadSlices()) == one);
  }
}

using CudaHeadEdges = CudaKernelTest;

TEST_F(CudaHeadEdges, ATargetOutsideTheVocabularyMakesItsRowNan) {
  for (const std::int32_t target : {-1, 63}) {
    HeadBatch in({3, 17, 63, DType::kF32});
    in.targets[1] = target;
    const HeadResult got = run(in);
    EXPECT_TRUE(std::isnan(got.loss_sum));
    for (std::size_t i = 0; i < 3 * 17; ++i) {
      EXPECT_EQ(std::isnan(got.dx[i]), i / 17 == 1) << i;
    }
  }
}

TEST_F(CudaHeadEdges, NeverHoldsAllLogits) {
  const auto gemm = make_plain_gemm();
  const HeadShape s{65536, 768, 50257, DType::kBF16};
  // 128 MiB of logits, half as much of gradients, a fp64 number per row; rows are padded a little.
  EXPECT_LE(head_workspace_bytes(*gemm, s), 193ull * kMiB);
  EXPECT_THROW(head_workspace_bytes(*gemm, {0, 1, 1, DType::kF32}), InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
