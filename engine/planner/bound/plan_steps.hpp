// Small steps from a relaxed solution to a plan, and from one plan to the next.
#pragma once

#include <string>
#include <vector>

#include "engine/planner/bound/relaxation.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// The units in model order: the first on the device up to its share of all elements, the next in
// pinned memory up to its share, the rest on storage. If storage has no share, nothing goes there.
std::vector<Tier> spread_shares(const TierShares& shares, const schedule::StepModel& model);

// The same with fewer units: half, a quarter or an eighth of those that make parts again keep them.
// These are the last ones, whose parts wait least. Segments have no such variants.
std::vector<schedule::Recomputation> less_recomputed(const schedule::Recomputation& from);

// Order and update in words.
std::string shape_text(const PlanShape& shape);

}  // namespace sluice::planner
