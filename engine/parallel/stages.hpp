// Cuts a model into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::parallel {

// By stage and unit: a unit's memory depends on the micro-batches that its stage has in flight.
using StageBytes = std::vector<std::vector<std::uint64_t>>;

// Cuts units of these costs into `stages` runs of at least one unit, so that the most expensive run
// costs as little as possible and the others are as even as possible (least sum of squares). Among
// equal cuts, later runs begin as early as possible: early stages have more micro-batches in
// flight. Precondition: there are as many units as stages, or more.
std::vector<schedule::UnitRange> cut_stages(const std::vector<std::uint64_t>& unit_costs,
                                            std::int32_t stages);
// The best of the cuts in which no run takes more than `most_bytes`; nothing if there is none.
std::optional<std::vector<schedule::UnitRange>> cut_stages_within(
    const std::vector<std::uint64_t>& unit_costs, const StageBytes& bytes,
    std::uint64_t most_bytes);
// The least `most_bytes` for which there is a cut.
std::uint64_t least_stage_bytes(const StageBytes& bytes);

// The view of rank `rank` of the order on a model whose stages have these units.
schedule::StageView make_stage_view(const schedule::PipelineOrder& order,
                                    std::vector<schedule::UnitRange> units, std::int32_t rank);

}  // namespace sluice::parallel
