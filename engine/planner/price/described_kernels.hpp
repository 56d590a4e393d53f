// Kernels of a GPU that is not here, for plans only: they answer the sizes of workspaces and compute
// nothing.
//
// The answers are those of kernels/cuda with cuBLASLt and cuDNN installed, as functions of the
// shape alone. They are upper bounds where a GPU would fall back to kernels of our own. Rules that
// update whole tensors have the host's workspaces instead.
#pragma once

#include <memory>

#include "engine/planner/price/priced_kernels.hpp"

namespace sluice::planner {

class DescribedKernels final : public PricedKernels {
 public:
  // host: answers the sizes of updates.
  explicit DescribedKernels(std::unique_ptr<kernels::Kernels> host);

  const char* arithmetic() const override { return "described"; }
  std::uint64_t gemm_workspace_bytes(const kernels::GemmShape& shape) const override;
  std::uint64_t attention_workspace_bytes(const kernels::AttentionShape& shape) const override;
  std::uint64_t attention_part_workspace_bytes(const kernels::AttentionPart& part) const override;
  std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows,
                                                   std::int64_t vocab) const override;
  std::uint64_t head_workspace_bytes(const kernels::HeadShape& shape) const override;
  std::uint64_t update_workspace_bytes(
      const kernels::OptimizerOptions& options,
      std::span<const kernels::ParameterSegment> segments) const override;

 private:
  std::unique_ptr<kernels::Kernels> host_;
};

}  // namespace sluice::planner
