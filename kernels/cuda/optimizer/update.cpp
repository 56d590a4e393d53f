// The update of a chunk on a GPU: checks, and the choice of the rule.
#include "kernels/cuda/optimizer/update.hpp"

#include <string>

#include "base/error.hpp"
#include "kernels/cuda/optimizer/rules.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::kernels::cuda {

std::uint64_t update_workspace_bytes(const GemmBackend& gemm, const OptimizerOptions& options,
                                     std::span<const ParameterSegment> segments) {
  check_whole_tensors(options, segments);
  switch (options.rule) {
    case OptimizerRule::kAdafactor:
      return adafactor_workspace_bytes(segments);
    case OptimizerRule::kSm3:
      return sm3_workspace_bytes(segments);
    case OptimizerRule::kMuon:
      return muon_workspace_bytes(gemm, segments);
    default:
      return 0;
  }
}

void update(StreamHandle stream, GemmBackend& gemm, const OptimizerOptions& options,
            const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
            const UpdateScalars& scalars, void* workspace) {
  SLUICE_CHECK_MSG(buffers.host.guard == nullptr, "updates on a GPU have no guard");
  check_update(options, buffers, segments);
  switch (options.rule) {
    case OptimizerRule::kAdamW:
      return adamw(stream, options, buffers, segments, scalars);
    case OptimizerRule::kAdam:
      return adam(stream, options, buffers, segments, scalars);
    case OptimizerRule::kSgd:
      return sgd(stream, options, buffers, segments, scalars);
    case OptimizerRule::kLion:
      return lion(stream, options, buffers, segments, scalars);
    case OptimizerRule::kAdafactor:
      return adafactor(stream, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kSm3:
      return sm3(stream, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kMuon:
      return muon(stream, gemm, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kCaller:
      break;
  }
  throw InternalError("no such optimizer rule: " + std::to_string(static_cast<int>(options.rule)));
}

}  // namespace sluice::kernels::cuda
