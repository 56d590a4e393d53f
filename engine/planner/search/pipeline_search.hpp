// The search for a plan of a pipeline.
//
// The relaxation of search.hpp knows one rank that has the whole model. A pipeline's memory is that of
// its fullest rank, and its time that of all ranks together, so plans are compared by trials of the
// whole world alone: the candidates of the first groups that fit, and then single changes to the
// fastest.
#pragma once

#include <variant>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/trial/refusal.hpp"
#include "engine/planner/trial/trials.hpp"

namespace sluice::planner {

// The candidates of the model's pipeline: their recomputations end at the borders of stages. Empty
// where there is none for one rank either.
std::vector<CandidateGroup> pipeline_candidates(const config::Config& config,
                                                const schedule::StepModel& model);

// The fastest plan of the groups, or the refusal of all. Precondition: there is a group, and `trials`
// are those of a pipeline.
std::variant<Compiled, Refusal> search_pipeline(const config::Config& config,
                                                const schedule::StepModel& model,
                                                const TierBytes& budgets, Trials& trials,
                                                std::vector<CandidateGroup> groups);

// Whether the search has made so many trials that it ends with what it has.
bool is_long_search(const Trials& trials);

}  // namespace sluice::planner
