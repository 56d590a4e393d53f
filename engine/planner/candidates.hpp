// The plans that are considered for a configuration, best first.
//
// What is left open ("auto") of the order of passes and the place of the update is, in these
// candidates, what needs the least memory; the variants below change it.
//
// A candidate is a complete set of step options; what it needs of each tier does not depend on the
// budgets. Candidates of one placement form a group; the last of a group is its most frugal, and a
// group is considered only where that one fits. So a configuration fits exactly when the most
// frugal candidate of some group fits, more memory never turns a plan into a refusal, and the least
// budget that fits is a minimum over the groups.
#pragma once

#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Last come those whose windows and arena share the device's memory (StepOptions::shares_device),
// in the same order: what shares waits for more, so each placement is there in both ways. Of these,
// groups are there in both orders of passes where train.order leaves the choice. No group
// is empty. No group at all: the placement that memory.place.* asks for cannot be run (a
// device optimizer needs device weights and gradients).
using CandidateGroup = std::vector<schedule::StepOptions>;
std::vector<CandidateGroup> plan_candidates(const config::Config& config,
                                            const schedule::StepModel& model);
bool shares_device(const CandidateGroup& group);

// Other orders of the passes where train.order leaves the choice: of the group's options, those
// without recomputation and those with, best first.
std::vector<CandidateGroup> order_variants(const config::Config& config,
                                           const CandidateGroup& group);
// Other ways to wait for activations, where memory.place.activation leaves the choice: spilled
// instead of recomputed, or in the order "unit"; these options, of which spill_choice.hpp says what
// leaves the device.
std::vector<schedule::StepOptions> spilling_variants(const config::Config& config,
                                                     const schedule::StepOptions& options);
// Whether any unit's activations, or part of what it saves, may leave the device.
bool spills_activations(const schedule::StepOptions& options);
// The same options with the update elsewhere, where optimizer.placement leaves the choice. Never
// speculative: how many steps will be redone only the training itself shows.
std::vector<schedule::StepOptions> update_variants(const config::Config& config,
                                                   const schedule::StepOptions& options);

// The same options with pieces of the update's own, where storage feeds it: many in a ring, the
// largest first; the last take no more memory than the pieces that the options have. Each costs
// time to plan, so this is for what has been chosen.
std::vector<schedule::StepOptions> update_piece_variants(const schedule::StepModel& model,
                                                         const schedule::StepOptions& options);

// Bytes of each tier that model state takes between steps: no plan with this placement needs less.
std::array<std::uint64_t, kTierCount> home_bytes(const schedule::StepModel& model,
                                                 const schedule::StepOptions& options);

}  // namespace sluice::planner
