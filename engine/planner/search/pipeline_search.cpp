#include "engine/planner/search/pipeline_search.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "engine/planner/bound/pipeline_choice.hpp"
#include "engine/planner/trial/feasibility.hpp"

namespace sluice::planner {
namespace {

// A trial compiles the lists of all ranks, so only a few groups are tried.
constexpr std::size_t kMostGroups = 4;
constexpr std::int32_t kMostExchangeLag = 2;
constexpr int kMostRounds = 3;  // of changes to the best plan
// No further trial of a pipeline that fits once trials have made so many instructions: some two
// seconds' worth.
constexpr std::uint64_t kTrialInstructions = 1'000'000;

struct Found {
  schedule::StepOptions options;
  double seconds = 0;
};

std::int32_t longest_stage(const std::vector<schedule::UnitRange>& stages) {
  std::int32_t longest = 0;
  for (const schedule::UnitRange& stage : stages)
    longest = std::max(longest, stage.end - stage.begin);
  return longest;
}

// The plans that one change makes of these options. Each gives the same results.
std::vector<schedule::StepOptions> changes_of(const config::Config& config,
                                              const schedule::StepModel& model,
                                              const schedule::StepOptions& options) {
  // Delayed updates have one place, after each gradient, with no exchange in between.
  if (config.parallel.delays_updates()) return {};
  std::vector<schedule::StepOptions> list = update_variants(config, options);
  for (schedule::StepOptions& carried : carried_variants(config, options)) {
    list.push_back(std::move(carried));
  }
  const std::int32_t most = longest_stage(options.stages);
  for (std::int32_t lag = 0; lag <= kMostExchangeLag && !model.view.is_alone(); ++lag) {
    list.push_back(options);
    list.back().exchange_lag = lag;
  }
  if (options.recompute.any()) {
    for (const std::int32_t ahead : {0, most / 4, most / 2, most}) {
      list.push_back(options);
      list.back().recompute_ahead = ahead;
    }
  }
  if (options.shares_device) {
    list.push_back(options);
    list.back().shares_device = false;
  }
  return list;
}

// The last backward pass of a stage sends its gradient after the additions of its units' exchanges,
// and the other stages wait for it. With a lag of as many units as the stage has, none of them stands
// before the message. So that is tried first: a long search tries little else.
schedule::StepOptions with_long_lag(const config::Config& config, const schedule::StepModel& model,
                                    schedule::StepOptions options) {
  const bool exchanges = !model.view.is_alone() && !config.parallel.delays_updates();
  options.exchange_lag = exchanges ? longest_stage(options.stages) : 0;
  return options;
}

}  // namespace

bool is_long_search(const Trials& trials) {
  return trials.instructions() >= kTrialInstructions;
}

std::vector<CandidateGroup> pipeline_candidates(const config::Config& config,
                                                const schedule::StepModel& model) {
  const StageCut& stages = model.pipeline.units;
  // A pipeline's order of passes leaves no choice.
  config::Config ordered = config;
  ordered.train.order = config::Config::Order::kMicrobatch;
  if (config.parallel.delays_updates()) {
    ordered.optimizer.placement = config::Config::OptimizerPlacement::kInBackward;
    ordered.optimizer.carried_units = 0;
  }
  std::vector<CandidateGroup> groups = plan_candidates(ordered, model);
  for (CandidateGroup& group : groups) {
    for (schedule::StepOptions& options : group) {
      options.stages = stages;
      options.recompute = cut_at_stages(std::move(options.recompute), stages);
      if (!schedule::is_possible(model, options.recompute)) {
        options.recompute = schedule::recompute_units(model);
      }
    }
  }
  return groups;
}

std::variant<Compiled, Refusal> search_pipeline(const config::Config& config,
                                                const schedule::StepModel& model,
                                                const TierBytes& budgets, Trials& trials,
                                                std::vector<CandidateGroup> groups) {
  Feasibility feasibility(model, budgets, trials, std::move(groups));
  if (!feasibility.fits()) return feasibility.refusal();
  std::optional<Found> best;
  // Whether the options fit, or there is no time for them.
  const auto consider = [&](const schedule::StepOptions& options) {
    if (best && is_long_search(trials)) return true;
    if (!trials.exact_fits(options, budgets)) return false;
    const double seconds = trials.coarse(options).seconds;
    if (!best || seconds < best->seconds) best = Found{options, seconds};
    return true;
  };
  std::size_t tried = 0;
  for (std::size_t i = 0; i < feasibility.groups().size() && tried < kMostGroups; ++i) {
    if (!feasibility.group_fits(i)) continue;
    ++tried;
    for (const schedule::StepOptions& options : feasibility.groups()[i]) {
      if (!consider(with_long_lag(config, model, options))) consider(options);
    }
  }
  SLUICE_CHECK(best.has_value());
  for (int round = 0; round < kMostRounds; ++round) {
    const schedule::StepOptions from = best->options;
    for (const schedule::StepOptions& options : changes_of(config, model, from)) consider(options);
    if (best->options == from) break;
  }
  Compiled compiled = trials.exact(best->options);
  SLUICE_CHECK(planner::fits(compiled.most_bytes, budgets));
  trials.simulate(compiled);
  return compiled;
}

}  // namespace sluice::planner
