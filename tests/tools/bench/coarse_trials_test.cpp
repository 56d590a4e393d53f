// Coarse trials against exact ones, on choices that are drawn for drawn models and machines. The
// default run draws a few. SLUICE_TRIAL_CASES sets the number of models, each with six choices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "engine/config/shapes.hpp"
#include "engine/planner/bound/activation_choice.hpp"
#include "engine/planner/bound/plan_steps.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/piece_sizes.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/choice/step_size.hpp"
#include "engine/planner/default_budgets.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/trial/trials.hpp"
#include "engine/schedule/compile/rank_share.hpp"
#include "engine/train/plan/backend.hpp"
#include "engine/train/plan/prepare.hpp"
#include "tools/bench/plan_by_hand.hpp"
#include "tools/bench/plan_held_out.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kSeed = 300;
constexpr int kChoices = 6;  // of a model
// An exact trial of more takes half a second.
constexpr std::uint64_t kMostInstructions = 200'000;

// A drawn model on a drawn machine, and what trials of its steps need.
struct Case {
  explicit Case(int number)
      : drawn(draw_held_out_case(kSeed, number, 0)),
        config(config_of(drawn)),
        backend(train::make_described_backend(config, drawn.hardware)),
        model(config::model_shape(config)),
        batch(config::batch_shape(config)),
        step(planner::make_step_model(model, batch, config::parameter_table(config, model),
                                      *backend.device_kernels, *backend.host_kernels)),
        costs(config, model, batch, drawn.hardware),
        trials(step, costs, {}),
        activations(config, step, costs) {}

  static config::Config config_of(const HeldOutCase& drawn) {
    Settings settings = drawn.settings;
    for (const char* ample : {"memory.device=1TiB", "memory.pinned=1TiB", "memory.storage=16TiB"}) {
      settings.emplace_back(ample);
    }
    config::Config config = config::parse_config("", "drawn", settings);
    train::settle_described_backend(config, drawn.hardware);
    config.train.threads = drawn.hardware.cores;
    return config;
  }

  HeldOutCase drawn;
  config::Config config;
  train::Backend backend;
  model::Model model;
  model::BatchShape batch;
  schedule::StepModel step;
  planner::CostModel costs;
  planner::Trials trials;
  planner::ActivationChoice activations;
};

planner::TierShares draw_shares(Draws& draws) {
  const auto quarters = [&] { return static_cast<double>(draws.below(5)) / 4; };
  const double device = quarters();
  const double pinned = draws.chance(0.3) ? 1 : quarters();
  return {device, (1 - device) * pinned, (1 - device) * (1 - pinned)};
}

void draw_passes(const Case& of, Draws& draws, schedule::StepOptions& options) {
  using schedule::UpdatePlacement;
  const bool several = own_microbatch_count(of.step, options) > 1;
  options.order = several && draws.chance(0.5) ? schedule::ComputeOrder::kUnit
                                               : schedule::ComputeOrder::kMicrobatch;
  options.update = UpdatePlacement::kAfterBackward;
  const std::vector<schedule::StepOptions> updates = planner::update_variants(of.config, options);
  const std::size_t update = draws.below(updates.size() + 1);
  if (update < updates.size()) options.update = updates[update].update;
  if (options.update == UpdatePlacement::kInBackward) {
    options.carried_units = static_cast<std::int32_t>(of.step.units.size() * draws.below(5) / 8);
  }
}

void draw_places(const Case& of, Draws& draws, schedule::StepOptions& options) {
  schedule::Placement& to = options.placement;
  to = {planner::spread_shares(draw_shares(draws), of.step),
        planner::spread_shares(draw_shares(draws), of.step),
        planner::spread_shares(draw_shares(draws), of.step)};
  for (std::size_t unit = 0; unit < to.optimizer.size(); ++unit) {
    const bool there = to.weight[unit] == Tier::kDevice && to.gradient[unit] == Tier::kDevice;
    if (to.optimizer[unit] == Tier::kDevice && !there) to.optimizer[unit] = Tier::kPinned;
  }
}

void draw_staging(const Case& of, Draws& draws, schedule::StepOptions& options) {
  options.prefetch = static_cast<std::int32_t>(draws.below(4));
  const std::uint64_t slots = planner::weight_slots_of_all(of.step, options.chunk_bytes);
  options.weight_slots = draws.chance(0.5) ? 0 : slots * draws.below(5) / 4;
  options.shares_device = draws.chance(0.2);
  options.piece_elems = draws.chance(0.25)
                            ? planner::small_piece_elems(of.step)
                            : planner::usual_piece_elems(of.step) * draws.one_of({1, 1, 4});
  options.stream_lookahead = static_cast<std::int32_t>(draws.one_of({1, 2, 4, 8}));
  const auto variants = planner::update_piece_variants(of.step, options);
  if (!variants.empty() && draws.chance(0.5)) options = variants[draws.below(variants.size())];
}

// By a policy's name, or the mixture for drawn bytes.
void draw_activations(const Case& of, Draws& draws, schedule::StepOptions& options) {
  const auto policies = planner::search_recomputations(of.config, of.step);
  options.recompute = policies[draws.below(policies.size())];
  if (draws.chance(0.4)) return;
  std::uint64_t bytes = 0;
  for (const schedule::UnitFootprint& unit : of.step.units) {
    bytes += unit.saved_bytes + unit.output_bytes;
  }
  const auto own = static_cast<std::uint64_t>(own_microbatch_count(of.step, options));
  if (options.order == schedule::ComputeOrder::kUnit) bytes *= own;
  const planner::TierBytes room{bytes * draws.below(9) / 8, bytes * draws.below(9) / 8, bytes * 2};
  schedule::StepOptions from = options;
  from.recompute = {};
  const auto mixed = of.activations.by_parts(from, room, planner::ActivationChoice::Spills::kMay);
  if (mixed) options = *mixed;
}

schedule::StepOptions draw_options(const Case& of, Draws& draws) {
  while (true) {
    schedule::StepOptions options = planner::plan_candidates(of.config, of.step).front().front();
    draw_passes(of, draws, options);
    draw_places(of, draws, options);
    draw_activations(of, draws, options);
    draw_staging(of, draws, options);
    if (planner::step_size(of.step, options) <= kMostInstructions) return options;
  }
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

TEST(CoarseTrials, OfDrawnChoicesTakeAsLongAsExactOnes) {
  const char* const wanted = std::getenv("SLUICE_TRIAL_CASES");
  const int cases = wanted == nullptr ? 6 : std::atoi(wanted);
  std::vector<double> time_errors;
  std::vector<double> byte_errors;
  int ordered = 0;
  for (int number = 0; number < cases; ++number) {
    Case of(number);
    Draws draws(kSeed + static_cast<std::uint64_t>(number), "tests/coarse_trials");
    struct Times {
      double exact_s = 0, coarse_s = 0;
    };
    std::vector<Times> times;
    for (int choice = 0; choice < kChoices; ++choice) {
      const schedule::StepOptions options = draw_options(of, draws);
      const planner::Compiled exact = of.trials.training(options);
      const planner::Trial& coarse = of.trials.coarse(options);
      times.push_back({exact.simulation.total_s, coarse.seconds});
      time_errors.push_back(std::abs(coarse.seconds / exact.simulation.total_s - 1));
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        const auto bytes = static_cast<double>(exact.most_bytes[tier]);
        if (bytes == 0) continue;
        byte_errors.push_back(std::abs(static_cast<double>(coarse.need[tier]) / bytes - 1));
      }
    }
    std::sort(times.begin(), times.end(),
              [](const Times& a, const Times& b) { return a.exact_s < b.exact_s; });
    constexpr double kTie = 1.005;
    const bool is_ordered = times[0].coarse_s <= times[1].coarse_s * kTie &&
                            times[1].coarse_s <= times[2].coarse_s * kTie;
    ordered += is_ordered ? 1 : 0;
  }
  RecordProperty("time_p50", std::to_string(quantile(time_errors, 0.5)));
  RecordProperty("time_p95", std::to_string(quantile(time_errors, 0.95)));
  RecordProperty("bytes_p95", std::to_string(quantile(byte_errors, 0.95)));
  RecordProperty("ordered", ordered);
  EXPECT_LE(quantile(time_errors, 0.5), 0.01);
  EXPECT_LE(quantile(time_errors, 0.95), 0.06);
  EXPECT_LE(quantile(byte_errors, 0.95), 0.02);
  EXPECT_GE(10 * ordered, 8 * cases);
}

}  // namespace
}  // namespace sluice::bench
