// The instructions of one pass. A pass whose unit has parts on several ranks is cut: each step is
// an instruction, and the sums over the ranks stand after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/schedule/compile/compute_items.hpp"
#include "engine/schedule/compile/inner_sums.hpp"
#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// The buffers that one pass touches, and the gradients that follow it.
struct PassUses {
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;
  BufferId loss = kNoId;
  std::vector<std::pair<std::int32_t, BufferId>> gradients;  // (unit, window written)
  std::uint64_t workspace_bytes = 0;
};

// The segments of a unit's pass, as its layer declares them.
const PassSegments& segments_of(const UnitFootprint& unit, Op pass);

// Step `index` of the pass, and the sums over ranks after it. A later step also reads what the
// first one leaves for it; the last one makes the output.
void emit_step(StepBuilder& builder, const ComputeItem& item, const PassUses& uses,
               const std::vector<PassStep>& steps, std::size_t index);

}  // namespace sluice::schedule
