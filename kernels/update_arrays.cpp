// Formats and checks of an update. Every combination without a kernel is refused here, before any
// rule runs, so the rules themselves need no checks.
#include "kernels/update_arrays.hpp"

#include "base/error.hpp"

namespace sluice::kernels {
namespace {

GradFormat grad_format(const UpdateBuffers& buffers) {
  if (buffers.grad_dtype == DType::kBF16) return GradFormat::kBF16;
  if (buffers.grad_dtype == DType::kF16) return GradFormat::kF16;
  SLUICE_CHECK_MSG(buffers.grad_dtype == DType::kF32, "gradients are bf16, fp16 or fp32");
  switch (buffers.round_grad_to) {
    case DType::kBF16:
      return GradFormat::kF32ThroughBF16;
    case DType::kF16:
      return GradFormat::kF32ThroughF16;
    default:
      SLUICE_CHECK_MSG(buffers.round_grad_to == DType::kF32,
                       "gradients are rounded to bf16, to fp16 or not");
      return GradFormat::kF32;
  }
}

WeightFormat weight_format(const OptimizerOptions& options) {
  if (options.split_master) {
    SLUICE_CHECK_MSG(options.weight == DType::kBF16, "only bf16 weights have a split master");
    return WeightFormat::kSplitBF16;
  }
  if (options.weight == DType::kF32) return WeightFormat::kF32;
  if (options.weight == DType::kF16) return WeightFormat::kMasterF16;
  SLUICE_CHECK_MSG(options.weight == DType::kBF16, "weights are bf16, fp16 or fp32");
  return WeightFormat::kMasterBF16;
}

void check_segments(const OptimizerOptions& options, const UpdateBuffers& buffers,
                    std::span<const ParameterSegment> segments) {
  const bool blocks = options.moments == DType::kBlock8;
  SLUICE_CHECK_MSG(!blocks || buffers.elems % static_cast<std::int64_t>(kBlock8GroupElems) == 0,
                   "a chunk with 8-bit moments must have whole groups of 4,096 elements");
  std::int64_t end = 0;
  for (const ParameterSegment& segment : segments) {
    SLUICE_CHECK_MSG(
        segment.begin >= end && segment.end >= segment.begin && segment.end <= buffers.elems,
        "an update's segments must ascend inside the chunk");
    SLUICE_CHECK_MSG(!blocks || segment.begin % static_cast<std::int64_t>(kBlock8Elems) == 0,
                     "a segment with 8-bit moments must begin at a multiple of 128 elements");
    const KeyRuns& runs = segment.runs;
    SLUICE_CHECK_MSG(
        runs.length == 0 || (runs.skip >= 0 && runs.before >= 0 && runs.before < runs.length),
        "the first run of a segment's keys must begin with it or before it");
    end = segment.end;
  }
}

// States must match the layout exactly. A state that the rule does not have means that the caller
// expects another rule.
void check_states(const OptimizerOptions& options, const UpdateBuffers& buffers) {
  if (buffers.elems == 0) return;
  const auto check = [&](StateKind kind, const void* state) {
    const StateExtent extent = state_layout(options, kind).extent;
    if (extent == StateExtent::kPerTensor) return;  // may have no elements
    SLUICE_CHECK_MSG((extent == StateExtent::kPerElement) == (state != nullptr),
                     "the optimizer's states do not match the rule");
  };
  check(StateKind::kMaster, buffers.master);
  check(StateKind::kMoment1, buffers.moment1);
  check(StateKind::kMoment2, buffers.moment2);
}

}  // namespace

UpdateArrays update_arrays(const OptimizerOptions& options, const UpdateBuffers& buffers,
                           const UpdateScalars& scalars) {
  SLUICE_CHECK_MSG(options.moments == DType::kF32 || options.moments == DType::kBF16 ||
                       options.moments == DType::kBlock8,
                   "moments are fp32, bf16 or in 8-bit blocks");
  UpdateArrays arrays;
  arrays.grad_format = grad_format(buffers);
  arrays.weight_format = weight_format(options);
  arrays.moments = options.moments;
  arrays.grad = buffers.grad;
  arrays.weight = buffers.weight;
  arrays.master = options.has_master() ? buffers.master : buffers.weight;
  arrays.moment1 = buffers.moment1;
  arrays.moment2 = buffers.moment2;
  arrays.guard = buffers.host.guard;
  arrays.seed = options.seed;
  arrays.step = scalars.step;
  return arrays;
}

void check_whole_tensors(const OptimizerOptions& options,
                         std::span<const ParameterSegment> segments) {
  if (!needs_whole_tensors(options)) return;
  for (const ParameterSegment& segment : segments) {
    const std::int64_t rows = segment.tensor.rows, cols = segment.tensor.cols;
    const std::int64_t elems = segment.end - segment.begin;
    // Division cannot overflow, unlike multiplication.
    SLUICE_CHECK_MSG(rows > 0 && cols > 0 && elems % cols == 0 && elems / cols == rows &&
                         segment.runs.length == 0,
                     "every segment must be a whole tensor for this rule");
  }
}

void check_update(const OptimizerOptions& options, const UpdateBuffers& buffers,
                  std::span<const ParameterSegment> segments) {
  check_segments(options, buffers, segments);
  check_states(options, buffers);
  check_whole_tensors(options, segments);
}

}  // namespace sluice::kernels
