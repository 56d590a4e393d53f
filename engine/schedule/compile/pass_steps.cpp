// A step reads all buffers of its pass and writes those that it shares with later steps. The values
// that cross a cut are found in these buffers by their roles.
#include "engine/schedule/compile/pass_steps.hpp"

#include <array>

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

bool is_output(BufferRole role) {
  return role == BufferRole::kActivation || role == BufferRole::kGradOut ||
         role == BufferRole::kState;
}

// The bytes that cross a cut, in the buffer of the pass that they lie in.
Use use_of(const StepBuilder& builder, const Cut& cut, const PassUses& uses) {
  constexpr std::array<BufferRole, 7> kRoles{BufferRole::kActivation,    BufferRole::kSaved,
                                             BufferRole::kWeightContext, BufferRole::kWorkspace,
                                             BufferRole::kState,         BufferRole::kState,
                                             BufferRole::kLoss};
  for (const BufferId id : uses.writes) {
    const Buffer& buffer = builder.buffer(id);
    const bool tied = buffer.role == BufferRole::kState && buffer.unit == builder.tied_unit();
    if (tied != (cut.value == CutValue::kTiedGradient)) continue;
    // Saved values are ranges of the unit's saved region.
    const std::uint64_t base = buffer.role == BufferRole::kSaved ? buffer.first_elem : 0;
    if (buffer.role == kRoles[static_cast<std::size_t>(cut.value)] && base <= cut.begin_bytes &&
        cut.begin_bytes + cut.bytes() <= base + buffer.bytes) {
      return {id, cut.begin_bytes - base, cut.bytes()};
    }
  }
  throw InternalError("a value that crosses a cut is in none of its pass's buffers");
}

}  // namespace

const PassSegments& segments_of(const UnitFootprint& unit, Op pass) {
  static const PassSegments whole{{}};
  const UnitSegments& segments = unit.segments;
  switch (pass) {
    case Op::kForward:
    case Op::kRecompute:
      return segments.forward;
    case Op::kLoss:
      return segments.loss;
    case Op::kBackwardInput:
      return segments.backward_input;
    case Op::kBackwardWeight:
      return segments.backward_weight;
    default:
      return whole;
  }
}

void emit_step(StepBuilder& builder, const ComputeItem& item, const PassUses& uses,
               const std::vector<PassStep>& steps, std::size_t index) {
  const PassStep& step = steps[index];
  const bool first = step.segments.begin == 0, last = index + 1 == steps.size();
  Instruction& instruction = builder.emit(item.op, Lane::kCompute, item.unit, item.microbatch);
  instruction.segments = step.segments;
  for (const BufferId id : uses.reads) instruction.reads.push_back({id, 0, 0});
  for (const BufferId id : uses.writes) {
    const bool output = is_output(builder.buffer(id).role);
    if (!first && !output) instruction.reads.push_back({id, 0, 0});
    if (last || !output) instruction.writes.push_back({id, 0, 0});
  }
  for (const Cut& cut : step.cuts) {
    const bool tied = cut.value == CutValue::kTiedGradient;
    emit_cut(builder, cut, tied ? builder.tied_unit() : item.unit, item.microbatch,
             use_of(builder, cut, uses));
  }
}

}  // namespace sluice::schedule
