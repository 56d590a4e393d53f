// Muon: orthogonalized momentum (kernels/optimizer.hpp has its arithmetic).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/host/gemm.hpp"
#include "kernels/host/optimizer/rules.hpp"

namespace sluice::kernels::host {

class Muon final : public ProductRule {
 public:
  // `gemm` must outlive this object.
  explicit Muon(const Gemm& gemm) : gemm_(gemm) {}
  std::uint64_t workspace_bytes(std::span<const ParameterSegment> segments) const override;
  void update(const Parallel& parallel, const OptimizerOptions& options,
              const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
              const UpdateScalars& scalars, void* workspace) const override;

 private:
  const Gemm& gemm_;
};

}  // namespace sluice::kernels::host
