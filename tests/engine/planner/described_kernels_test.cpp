// Workspaces of a GPU that is only described are those of its kernels.
#include "engine/planner/price/described_kernels.hpp"

#include <gtest/gtest.h>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/attention_part.hpp"
#include "kernels/cuda/embedding.hpp"
#include "kernels/cuda/fused_attention.hpp"
#include "kernels/cuda/gemm_cublaslt.hpp"
#include "kernels/cuda/head.hpp"

namespace sluice::planner {
namespace {

namespace cuda = kernels::cuda;

// Products with cuBLASLt's workspace, never made here.
class NoProducts final : public cuda::GemmBackend {
 public:
  const char* name() const override { return "none"; }
  std::uint64_t workspace_bytes() const override { return cuda::kCublasLtWorkspaceBytes; }
  bool multiply(cuda::StreamHandle, const kernels::GemmShape&, const cuda::GemmStrides&,
                const void*, const void*, const cuda::GemmEpilogue&, void*, void*) override {
    return false;
  }
};

TEST(DescribedKernels, AnswerTheSizesOfTheGpusKernels) {
  const DescribedKernels described(kernels::make_host_kernels({1}));
  const NoProducts products;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const kernels::GemmShape product{.m = 300, .n = 200, .k = 100, .dtype = dtype, .output = dtype};
    EXPECT_EQ(described.gemm_workspace_bytes(product),
              cuda::gemm_workspace_bytes(products, product));
    for (const std::int64_t rows : {1, 100, 4096, 40000}) {
      for (const std::int64_t vocab : {250, 32000, 152064}) {
        const kernels::HeadShape head{rows, 512, vocab, dtype};
        EXPECT_EQ(described.head_workspace_bytes(head), cuda::head_workspace_bytes(products, head))
            << rows << " " << vocab;
        EXPECT_EQ(described.embedding_backward_workspace_bytes(rows, vocab),
                  cuda::embedding_backward_workspace_bytes(rows, vocab));
      }
    }
    for (const std::int64_t batch : {1, 3, 48}) {
      for (const std::int64_t time : {31, 1024, 4096, 30000}) {
        for (const std::int64_t kv_heads : {40, 8, 1}) {
          const kernels::AttentionShape shape{batch, time, 40, kv_heads, 128, dtype};
          const std::uint64_t own = cuda::attention_workspace_bytes(shape);
          EXPECT_EQ(described.attention_workspace_bytes(shape),
                    dtype == DType::kF32 ? own : std::max(own, cuda::fused_attention_bytes(shape)))
              << batch << " " << time << " " << kv_heads;
          const kernels::AttentionPart part{time, batch, 40, kv_heads, 128, false, time, dtype};
          EXPECT_EQ(described.attention_part_workspace_bytes(part),
                    cuda::attention_part_workspace_bytes(part))
              << batch << " " << time << " " << kv_heads;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::planner
