// The recomputations that recompute.policy allows.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/choice/chain_recompute.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A fixed policy has one; "auto" has none, whole units, and nested segments where these take less
// memory than whole units. The list is never empty.
std::vector<schedule::Recomputation> recompute_choices(const config::Config& config,
                                                       const schedule::StepModel& model);

// Those that the search starts from: "auto" has every policy, and "every" for powers of two.
std::vector<schedule::Recomputation> search_recomputations(const config::Config& config,
                                                           const schedule::StepModel& model);

// The units after the embedding as a chain, with the values of `live` micro-batches at a time.
// Empty if one between embedding and head cannot be recomputed. A pass takes one second.
std::vector<ChainUnit> chain_of(const schedule::StepModel& model, std::uint64_t live);
schedule::Recomputation recompute_chain(const schedule::StepModel& model,
                                        const std::vector<ChainRuns>& runs);

// Parts of one unit that are recomputed together.
struct Remake {
  schedule::PartMask parts = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;  // of one micro-batch
};
// Equal units, and the sets of their parts that are worth recomputing: nothing first, all parts
// last. The seconds are a convex function of the bytes, so a mixture of two neighbours frees any
// number of bytes in the least time.
struct RemakeClass {
  std::vector<std::size_t> units;
  std::vector<Remake> remakes;
  double output_s = 0;  // of the output, besides all parts; 0 if the units cannot be recomputed
};
// All units but the head.
std::vector<RemakeClass> remake_classes(const schedule::StepModel& model, CostModel& costs);

}  // namespace sluice::planner
