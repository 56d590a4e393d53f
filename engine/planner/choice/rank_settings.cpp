#include "engine/planner/choice/rank_settings.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "engine/schedule/compile/compute_items.hpp"
#include "engine/schedule/compile/step_fields.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

std::string stage_text(const config::Config& config) {
  return "parallel.zero = " + std::to_string(config.parallel.zero);
}

bool all_on_device(const std::vector<Tier>& tiers) {
  return std::all_of(tiers.begin(), tiers.end(), [](Tier tier) { return tier == Tier::kDevice; });
}

}  // namespace

bool sums_by_place(const config::Config& config) {
  return config.parallel.data > 1 &&
         (config.parallel.reduction == config::Config::GradientSum::kRing ||
          config.parallel.node_ranks > 1);
}

void check_rank_counts(const config::Config& config, std::int64_t most) {
  const auto& parallel = config.parallel;
  if (parallel.ranks() > most) {
    std::string product = "parallel.data";
    if (parallel.pipeline > 1) product += " * parallel.pipeline";
    if (parallel.context > 1) product += " * parallel.context";
    if (parallel.tensor > 1) product += " * parallel.tensor";
    const std::string limit =
        most == kMostPlannedRanks
            ? ", and a plan proves the steps of at most 64 ranks; 'sluice plan --hardware' plans "
              "more on paper, but not with parallel.reduction = \"ring\" or parallel.node_ranks"
            : ", and a plan on paper has at most " + std::to_string(most) + " ranks";
    throw InputError(product + " is " + std::to_string(parallel.ranks()) + limit);
  }
  config::Config asked = config;
  // Kernels of a GPU on paper answer sizes and prices of parts, too.
  if (most > kMostPlannedRanks) asked.memory.backend = config::Config::Backend::kHost;
  if (const auto problem = config::ranks_problem(asked)) throw InputError(problem->sentence);
}

config::Config with_places_of_stage(config::Config config) {
  if (config.parallel.data == 1) return config;
  config::Config::Places& place = config.memory.place;
  const auto keep_on_device = [&](Place& kind, const char* key, const char* what) {
    if (kind != Place::kAuto && kind != Place::kDevice) {
      throw InputError(std::string(key) + " must be \"device\" or \"auto\" with " +
                       stage_text(config) +
                       ", where each of parallel.data = " + std::to_string(config.parallel.data) +
                       " ranks keeps all " + what + " on its device; use parallel.zero = 3");
    }
    kind = Place::kDevice;
  };
  if (config.parallel.zero < 3) keep_on_device(place.weight, "memory.place.weight", "weights");
  // It moves from rank to rank, which only memory does.
  if (config.parallel.server &&
      config.parallel.server_mode == config::Config::ServerMode::kRotating) {
    if (place.optimizer == Place::kStorage) {
      throw InputError(
          "memory.place.optimizer must be \"pinned\" or \"device\" with parallel.server_mode = "
          "\"rotating\", where the optimizer's state moves from rank to rank");
    }
    if (place.optimizer == Place::kAuto) place.optimizer = Place::kPinned;
  }
  if (config.parallel.zero == 0 && !config.parallel.server) {
    keep_on_device(place.gradient, "memory.place.gradient", "gradients");
  }
  return config;
}

void set_sums(const config::Config& config, schedule::StepOptions& options) {
  const bool ring =
      config.parallel.data > 1 && config.parallel.reduction == config::Config::GradientSum::kRing;
  options.microbatches = static_cast<std::int32_t>(config.train.accumulate);
  options.fold_groups =
      static_cast<std::int32_t>(ring ? config.parallel.data : config.train.fold_groups);
  options.sum = ring ? schedule::GradientSum::kRing : schedule::GradientSum::kInOrder;
  options.bucket_elems = config.parallel.bucket_bytes / sizeof(float);
  options.node_ranks =
      static_cast<std::int32_t>(config.parallel.data > 1 ? config.parallel.node_ranks : 0);
}

void check_options(const schedule::StepOptions& options, const config::Config& config,
                   const schedule::StepModel& step) {
  schedule::StepOptions asked = options;
  set_sums(config, asked);
  asked.chunk_bytes = config.memory.chunk_bytes;
  bool shaped = options == asked;
  schedule::for_each_misfit(options, step.units.size(),
                            [&](const auto&, std::size_t) { shaped = false; });
  const bool delays_rightly =
      !step.pipeline.order.delays_updates() ||
      (options.update == schedule::UpdatePlacement::kInBackward && options.carried_units == 0 &&
       options.exchange_lag == 0 && !options.durable);
  const bool takes_turns = options.turns == 1 || schedule::may_take_turns(step);
  if (!shaped || !delays_rightly || !takes_turns) {
    throw InputError("the step options are not of this configuration");
  }
  const schedule::RankView& view = step.view;
  const schedule::Placement& placement = options.placement;
  const bool placed =
      view.is_alone() || ((view.shards_weights() || all_on_device(placement.weight)) &&
                          (view.shards_optimizer() || all_on_device(placement.gradient)));
  if (!placed || !schedule::is_possible(step, options.recompute)) {
    throw InputError("the step options ask for a placement or a recomputation that " +
                     stage_text(config) + " and this model do not allow");
  }
}

}  // namespace sluice::planner
