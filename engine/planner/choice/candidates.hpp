// The plans that are considered for a configuration, best first.
//
// If the order of passes or the place of the update is left open ("auto"), these candidates use the
// value that needs the least memory. The search tries the others.
//
// A candidate is a complete set of step options. Its need of each tier does not depend on the
// budgets. Candidates of one placement form a group; the last of a group is its most frugal, and a
// group is considered only if that one fits. So a configuration fits exactly when the most frugal
// candidate of some group fits, more memory never turns a plan into a refusal, and the least budget
// that fits is a minimum over the groups.
#pragma once

#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Groups whose windows and arena share the device's memory (StepOptions::shares_device) come last,
// in the same order. Sharing takes less memory but makes instructions wait longer, so each
// placement is listed in both ways; and the sharing groups in both orders of passes if train.order
// leaves the choice. No group is empty. No group at all means that the placement of memory.place.*
// cannot be run: a device optimizer needs device weights and gradients.
using CandidateGroup = std::vector<schedule::StepOptions>;
std::vector<CandidateGroup> plan_candidates(const config::Config& config,
                                            const schedule::StepModel& model);
bool shares_device(const CandidateGroup& group);

// The same options with the update elsewhere, if optimizer.placement leaves the choice. Never
// speculative: only the training itself shows how many steps are redone.
std::vector<schedule::StepOptions> update_variants(const config::Config& config,
                                                   const schedule::StepOptions& options);

// Whether the places, the recomputation, the order and the update are all set.
bool makes_all_choices(const config::Config& config);

// The same options with other numbers of carried units, if the update is in the backward pass and
// optimizer.carried_units leaves the choice.
std::vector<schedule::StepOptions> carried_variants(const config::Config& config,
                                                    const schedule::StepOptions& options);

// The tiers where a rank's sums of groups of micro-batches may wait, and their place in options. Only
// the device if the step has none; in the order "unit" the sums of one unit wait at a time, so there
// a lower tier gains little and is taken only by name.
std::vector<Tier> partial_tiers(const config::Config& config, const schedule::StepModel& model,
                                const schedule::StepOptions& options);
void place_partials(schedule::StepOptions& options, Tier tier, const schedule::StepModel& model);
// Bytes of these sums between two micro-batches, in the order "microbatch"; no plan with this
// placement needs less.
TierBytes partial_bytes(const schedule::StepModel& model, const schedule::StepOptions& options);

// Slots that the weights of all units take.
std::uint64_t weight_slots_of_all(const schedule::StepModel& model, std::uint64_t chunk_bytes);
// Elements of the unit that the model's rank updates.
std::uint64_t updated_elems(const schedule::StepModel& model, std::size_t unit);
// The same of the largest unit.
std::uint64_t largest_updated_elems(const schedule::StepModel& model);
// Bytes of a unit's optimizer state of all kinds that the rank keeps.
std::uint64_t optimizer_state_bytes(const schedule::StepModel& model, std::size_t unit);
// Bytes that the rank's model state takes of each tier between steps, without a copy of tied weights. No
// plan with this placement needs less.
std::array<std::uint64_t, kTierCount> home_bytes(const schedule::StepModel& model,
                                                 const schedule::StepOptions& options);
// Home bytes, those of partial sums, and those of activations that wait between forward and backward in the tier of their
// place. Activations with a place off the device may stay on it, so only the device's sum bounds a
// plan's need.
std::array<std::uint64_t, kTierCount> resting_bytes(const schedule::StepModel& model,
                                                    const schedule::StepOptions& options);

}  // namespace sluice::planner
