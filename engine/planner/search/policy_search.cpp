// Searches share their trials, so options that several of them try are compiled once. A policy with
// a bound above the best plan is passed over: it cannot win.
#include "engine/planner/search/policy_search.hpp"

#include <algorithm>
#include <list>
#include <utility>

#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/choice/step_size.hpp"

namespace sluice::planner {
namespace {

using config::Config;

// The configuration with each policy by name; every:K for powers of two. Those that make the same
// recomputations count once.
std::vector<Config> named_policies(const Config& config, const schedule::StepModel& model) {
  using Policy = Config::Recompute;
  std::vector<Config> list;
  std::vector<schedule::Recomputation> known;
  const auto add = [&](Policy policy, std::int64_t every) {
    Config named = config;
    named.recompute.policy = policy;
    named.recompute.every = every;
    const schedule::Recomputation recompute = recompute_choices(named, model).front();
    if (std::find(known.begin(), known.end(), recompute) != known.end()) return;
    known.push_back(recompute);
    list.push_back(std::move(named));
  };
  for (const Policy policy :
       {Policy::kNone, Policy::kSelective, Policy::kAttention, Policy::kUnit, Policy::kSqrt}) {
    add(policy, 1);
  }
  const auto units = static_cast<std::int64_t>(model.units.size());
  for (std::int64_t every = 2; every < units; every *= 2) add(Policy::kEvery, every);
  return list;
}

// Coarse times are a few percent off, so plans this much slower may be the faster ones.
constexpr double kNear = 1.05;

bool is_near(const Search& search, double seconds) {
  return search.front() != nullptr && search.front()->seconds < seconds * kNear;
}

// A search with a configuration of its own.
struct NamedSearch {
  NamedSearch(Config named, const schedule::StepModel& model, const TierBytes& budgets,
              CostModel& costs, Trials& trials, std::vector<CandidateGroup> groups)
      : config(std::move(named)),
        search(config, model, budgets, costs, trials, std::move(groups)) {}

  Config config;
  Search search;
};

}  // namespace

Compiled search_policies(Search& search, const Config& config, const schedule::StepModel& model,
                         const TierBytes& budgets, CostModel& costs, Trials& trials) {
  search.explore();
  std::list<NamedSearch> others;
  const bool chooses = config.recompute.policy == Config::Recompute::kAuto &&
                       config.memory.place.saved.empty() && search.is_cheap();
  for (const Config& named : chooses ? named_policies(config, model) : std::vector<Config>{}) {
    const bool is_segments = named.recompute.policy == Config::Recompute::kEvery;
    if (is_segments && trials.instructions() > kPolicySearchInstructions) continue;
    std::vector<CandidateGroup> groups = plan_candidates(named, model);
    std::erase_if(groups, [&](const CandidateGroup& group) {
      return step_size(model, group.back()) > kMostStepInstructions;
    });
    if (groups.empty()) continue;
    Search& other =
        others.emplace_back(named, model, budgets, costs, trials, std::move(groups)).search;
    const double least_s = other.least_step_s();
    if (least_s <= 0 || least_s >= search.front()->seconds || !other.fits()) {
      others.pop_back();
      continue;
    }
    other.explore();
    if (is_near(other, search.front()->seconds)) search.improve(*other.front());
  }
  Compiled best = search.conclude();
  for (NamedSearch& other : others) {
    if (!is_near(other.search, best.simulation.total_s)) continue;
    Compiled compiled = other.search.conclude();
    if (compiled.simulation.total_s < best.simulation.total_s) best = std::move(compiled);
  }
  // Of plans that hardly differ by a coarse trial a search compiles one. Another one that was tried
  // exactly may be faster.
  if (auto faster = trials.fastest_exact(best.simulation.total_s, budgets)) {
    best = std::move(*faster);
  }
  Trials::link(best);
  search.state_need(best);
  return best;
}

}  // namespace sluice::planner
