// The sums between the segments of a pass, and of the norm, among the ranks of a tensor group. The
// functions emit nothing for a rank that is alone.
//
// An AllReduce is a reduce-scatter of even parts, added by the tree of law 2, and a gather: a rank
// sends 2 (N - 1) / N of the elements if N divides them. Its `bytes` are exact in any case. It
// writes the elements that it reads, and a workspace for the others' parts of the elements that it
// folds.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// A part of a pass that runs as one instruction, and the cuts after it.
struct PassStep {
  SegmentRange segments;
  std::vector<Cut> cuts;
};

// The steps of a pass of this rank: all of it in one if the rank is alone. makes_output, remade: of
// a Recompute, which leaves out cuts that nothing of what it makes needs; for other passes true and
// 0.
std::vector<PassStep> steps_of(const TensorView& tensor, const PassSegments& segments,
                               bool makes_output, PartMask remade);

// The collective of a cut on these bytes of a buffer, in place.
void emit_cut(StepBuilder& builder, const Cut& cut, std::int32_t unit, std::int32_t microbatch,
              const Use& value);

// Adds the partials of the norm of tensors that ranks have parts of.
void emit_inner_norm_sum(StepBuilder& builder);

}  // namespace sluice::schedule
