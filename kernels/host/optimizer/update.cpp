#include "kernels/host/optimizer/update.hpp"

#include <string>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"

namespace sluice::host {
namespace {

void check(const UpdateBuffers& buffers, std::span<const ParameterSegment> segments) {
  std::int64_t end = 0;
  for (const ParameterSegment& segment : segments) {
    SLUICE_CHECK_MSG(
        segment.begin >= end && segment.end >= segment.begin && segment.end <= buffers.elems,
        "an update's segments must ascend inside the chunk");
    end = segment.end;
  }
}

// Of rules that need whole tensors.
void check_whole_tensors(const OptimizerOptions& options,
                         std::span<const ParameterSegment> segments) {
  if (!needs_whole_tensors(options)) return;
  for (const ParameterSegment& segment : segments) {
    const auto [rows, cols, hidden] = segment.tensor;
    // Divided, not multiplied: nothing overflows.
    const std::int64_t elems = segment.end - segment.begin;
    SLUICE_CHECK_MSG(rows > 0 && cols > 0 && elems % cols == 0 && elems / cols == rows,
                     "every segment must be a whole tensor for this rule");
  }
}

}  // namespace

std::uint64_t update_workspace_bytes(const Gemm& gemm, const OptimizerOptions& options,
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

void update(const Parallel& parallel, const Gemm& gemm, const OptimizerOptions& options,
            const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
            const UpdateScalars& scalars, void* workspace) {
  check(buffers, segments);
  check_whole_tensors(options, segments);
  switch (options.rule) {
    case OptimizerRule::kAdamW:
      return adamw(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kAdafactor:
      return adafactor(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kSm3:
      return sm3(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kMuon:
      return muon(parallel, gemm, options, buffers, segments, scalars, workspace);
    default:
      throw InternalError("no such rule on the host: " +
                          std::string(optimizer_rule_name(options.rule)));
  }
}

}  // namespace sluice::host
