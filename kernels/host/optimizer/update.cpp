#include "kernels/host/optimizer/update.hpp"

#include <string>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"

namespace sluice::host {
namespace {

void check_segments(const OptimizerOptions& options, const UpdateBuffers& buffers,
                    std::span<const ParameterSegment> segments) {
  const bool blocks = options.moments == DType::kBlock8;
  SLUICE_CHECK_MSG(!blocks || buffers.elems % static_cast<std::int64_t>(kBlock8GroupElems) == 0,
                   "a chunk with 8-bit moments is of whole groups of 4,096 elements");
  std::int64_t end = 0;
  for (const ParameterSegment& segment : segments) {
    SLUICE_CHECK_MSG(
        segment.begin >= end && segment.end >= segment.begin && segment.end <= buffers.elems,
        "an update's segments must ascend inside the chunk");
    SLUICE_CHECK_MSG(!blocks || segment.begin % static_cast<std::int64_t>(kBlock8Elems) == 0,
                     "a segment with 8-bit moments begins at a multiple of 128 elements");
    end = segment.end;
  }
}

// What the layout says must be there, and nothing else: a state that a rule does not have is a sign
// of a caller that believes it has.
void check_states(const OptimizerOptions& options, const UpdateBuffers& buffers) {
  if (buffers.elems == 0) return;
  const auto check = [&](StateKind kind, const void* state) {
    const StateExtent extent = state_layout(options, kind).extent;
    if (extent == StateExtent::kPerTensor) return;  // may have no elements
    SLUICE_CHECK_MSG((extent == StateExtent::kPerElement) == (state != nullptr),
                     "the optimizer's states do not suit the rule");
  };
  check(StateKind::kMaster, buffers.master);
  check(StateKind::kMoment1, buffers.moment1);
  check(StateKind::kMoment2, buffers.moment2);
}

void check_whole_tensors(const OptimizerOptions& options,
                         std::span<const ParameterSegment> segments) {
  if (!needs_whole_tensors(options)) return;
  for (const ParameterSegment& segment : segments) {
    const std::int64_t rows = segment.tensor.rows, cols = segment.tensor.cols;
    const std::int64_t elems = segment.end - segment.begin;
    // Divided, not multiplied: nothing overflows.
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
  check_segments(options, buffers, segments);
  check_states(options, buffers);
  check_whole_tensors(options, segments);
  switch (options.rule) {
    case OptimizerRule::kAdamW:
      return adamw(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kAdam:
      return adam(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kSgd:
      return sgd(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kLion:
      return lion(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kAdafactor:
      return adafactor(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kSm3:
      return sm3(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kMuon:
      return muon(parallel, gemm, options, buffers, segments, scalars, workspace);
  }
  throw InternalError("no such optimizer rule: " + std::to_string(static_cast<int>(options.rule)));
}

}  // namespace sluice::host
