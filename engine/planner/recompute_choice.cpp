// One list decides whether a configuration fits, so it holds only the least frugal and the most
// frugal recomputation. The other one is for speed, so it holds every policy.
#include "engine/planner/recompute_choice.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace sluice::planner {

std::vector<schedule::Recomputation> recompute_choices(const config::Config& config,
                                                       const schedule::StepModel& model) {
  using Policy = config::Config::Recompute;
  switch (config.recompute.policy) {
    case Policy::kNone:
      return {{}};
    case Policy::kUnit:
      return {recompute_units(model)};
    case Policy::kSelective:
      return {recompute_parts(model, schedule::MadeBy::kElementwise)};
    case Policy::kAttention:
      return {recompute_parts(model, schedule::MadeBy::kAttention)};
    case Policy::kEvery:
      return {recompute_segments(model, static_cast<std::int32_t>(config.recompute.every))};
    case Policy::kSqrt:
      return {recompute_segments(model, sqrt_segment_length(model))};
    case Policy::kAuto:
      return {{}, recompute_units(model)};
  }
  throw InternalError("no such recompute.policy");
}

std::vector<schedule::Recomputation> search_recomputations(const config::Config& config,
                                                           const schedule::StepModel& model) {
  if (config.recompute.policy != config::Config::Recompute::kAuto) {
    return recompute_choices(config, model);
  }
  std::vector<schedule::Recomputation> list;
  for (schedule::Recomputation& recompute : std::vector<schedule::Recomputation>{
           {},
           recompute_parts(model, schedule::MadeBy::kElementwise),
           recompute_parts(model, schedule::MadeBy::kAttention),
           recompute_units(model),
           recompute_segments(model, sqrt_segment_length(model))}) {
    if (std::find(list.begin(), list.end(), recompute) == list.end()) {
      list.push_back(std::move(recompute));
    }
  }
  return list;
}

}  // namespace sluice::planner
