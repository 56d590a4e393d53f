// Cuts a model into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::parallel {

// Cuts units of these costs into `stages` runs of at least one unit, so that the most expensive run
// costs as little as possible, and of such cuts the one whose later runs begin as early as possible.
// Precondition: there are as many units as stages, or more.
std::vector<schedule::UnitRange> cut_stages(const std::vector<std::uint64_t>& unit_costs,
                                            std::int32_t stages);

// The view of rank `rank` of the order on a model whose stages have these units.
schedule::StageView make_stage_view(const schedule::PipelineOrder& order,
                                    std::vector<schedule::UnitRange> units, std::int32_t rank);

}  // namespace sluice::parallel
