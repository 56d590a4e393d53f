// Coarse trials compared with exact ones: the time and the need of steps with many micro-batches.
#include "engine/planner/trial/trials.hpp"

#include <gtest/gtest.h>

#include "engine/config/shapes.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/spill_choice.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/schedule/compile/pack.hpp"

namespace sluice::testing {
namespace {

constexpr planner::TierBytes kAnyBytes{1024 * kGiB, 1024 * kGiB, 1024 * kGiB};

class TrialsTest : public ::testing::Test {
 protected:
  TrialsTest()
      : model_(config::model_shape(config_)),
        batch_(config::batch_shape(config_)),
        kernels_(kernels::make_host_kernels({1})),
        step_model_(planner::make_step_model(
            model_, batch_, config::parameter_table(config_, model_), *kernels_, *kernels_)),
        costs_(config_, model_, batch_, hardware_),
        trials_(step_model_, costs_, {}) {}

  static config::Config small_model() {
    config::Config config;
    config.model.layers = 6;
    config.model.hidden = 128;
    config.model.heads = config.model.kv_heads = 4;
    config.model.ffn = 512;
    config.model.max_seq = config.train.seq = 64;
    config.train.accumulate = 12;
    return config;
  }

  schedule::StepOptions options(schedule::ComputeOrder order, Tier state, Tier activation) const {
    schedule::StepOptions options = planner::plan_candidates(config_, step_model_).front().front();
    options.order = order;
    options.weight_slots = 0;
    const std::vector<Tier> tiers(step_model_.units.size(), state);
    options.placement = {tiers, tiers, tiers,
                         std::vector<Tier>(step_model_.units.size(), activation)};
    options.placement.saved =
        planner::saved_places(config_, step_model_, options.placement.activation);
    return options;
  }

  std::vector<schedule::StepOptions> examples() const {
    std::vector<schedule::StepOptions> list;
    for (const auto order : {schedule::ComputeOrder::kMicrobatch, schedule::ComputeOrder::kUnit}) {
      for (const Tier state : {Tier::kDevice, Tier::kPinned, Tier::kStorage}) {
        for (const Tier activation : {Tier::kDevice, Tier::kPinned}) {
          list.push_back(options(order, state, activation));
        }
      }
    }
    return list;
  }

  config::Config config_ = small_model();
  planner::HardwareProfile hardware_;
  model::Model model_;
  model::BatchShape batch_;
  std::unique_ptr<kernels::Kernels> kernels_;
  schedule::StepModel step_model_;
  planner::CostModel costs_;
  planner::Trials trials_;
};

TEST_F(TrialsTest, AFewMicrobatchesTellTheTimeOfAll) {
  for (const schedule::StepOptions& options : examples()) {
    planner::Compiled exact = trials_.exact(options);
    trials_.simulate(exact);
    EXPECT_NEAR(trials_.coarse(options).seconds / exact.simulation.total_s, 1.0, 0.1)
        << exact.simulation.total_s;
  }
}

// A need that is too small would be found out only after an exact trial.
TEST_F(TrialsTest, AFewMicrobatchesTellTheNeedOfAll) {
  for (const schedule::StepOptions& options : examples()) {
    const planner::TierBytes exact = trials_.exact(options).need.peak_bytes();
    const planner::TierBytes coarse = trials_.coarse_need(options);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      const auto bytes = static_cast<double>(exact[tier]);
      EXPECT_NEAR(static_cast<double>(coarse[tier]), bytes, 0.1 * bytes + 1.0 * kMiB) << tier;
    }
  }
}

// A refusal compiles no group whose bytes at rest are too many already.
TEST_F(TrialsTest, NoNeedIsBelowTheBytesAtRest) {
  std::uint64_t sum = 0;  // some examples keep nothing on the device between steps
  for (const schedule::StepOptions& options : examples()) {
    const planner::TierBytes exact = trials_.exact_need(options);
    EXPECT_TRUE(planner::fits(planner::home_bytes(step_model_, options), exact));
    const std::uint64_t device = planner::resting_bytes(step_model_, options).front();
    EXPECT_LE(device, exact.front());
    EXPECT_LE(device, trials_.coarse_need(options).front());
    sum += device;
  }
  EXPECT_GT(sum, 0u);
}

TEST_F(TrialsTest, AnExactNeedIsThatOfTheExactTrial) {
  for (const schedule::StepOptions& options : examples()) {
    EXPECT_EQ(trials_.exact_need(options), trials_.exact(options).need.peak_bytes());
  }
}

// The search compiles other steps only for the plan that it takes.
TEST_F(TrialsTest, ACompletedTrainingStepIsTheExactTrial) {
  for (schedule::StepOptions options : examples()) {
    options.update = schedule::UpdatePlacement::kNextForward;
    planner::Compiled exact = trials_.exact(options);
    trials_.simulate(exact);
    planner::Compiled completed = trials_.training(options);
    EXPECT_TRUE(completed.schedules[schedule::StepKind::kDrain].instructions.empty());
    EXPECT_EQ(completed.simulation.total_s, exact.simulation.total_s);
    trials_.complete(completed);
    EXPECT_EQ(completed.need.peak_bytes(), exact.need.peak_bytes());
    EXPECT_EQ(completed.most_bytes, exact.most_bytes);
    for (const schedule::StepKind kind : schedule::kStepKinds) {
      EXPECT_EQ(completed.schedules[kind].instructions.size(),
                exact.schedules[kind].instructions.size());
    }
  }
}

// A step that cannot fit is not packed; so the bytes that decide must never be above its need.
TEST_F(TrialsTest, AStepIsPlacedWithinItsNeedAndNotBelow) {
  for (const schedule::StepOptions& options : examples()) {
    const planner::Compiled placed = trials_.place_training(options);
    const schedule::Schedule& step = placed.schedules[schedule::StepKind::kTraining];
    EXPECT_LE(schedule::least_pinned_bytes(step), step.pinned_arena_bytes);
    // Few bytes are lost to packing, and to the alignment of tokens and losses.
    EXPECT_GE(schedule::least_pinned_bytes(step) + 128 * kKiB, step.pinned_arena_bytes * 9 / 10);
    const auto within = trials_.place_training(options, placed.most_bytes);
    ASSERT_TRUE(within);
    EXPECT_EQ(within->most_bytes, placed.most_bytes);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      planner::TierBytes less = placed.most_bytes;
      if (less[tier]-- == 0) continue;
      EXPECT_FALSE(trials_.place_training(options, less)) << tier;
      const planner::Compiled part = trials_.place_all(options, less);
      EXPECT_FALSE(planner::fits(part.most_bytes, less)) << tier;
      EXPECT_TRUE(part.schedules[schedule::StepKind::kEvaluation].instructions.empty());
    }
    const planner::Compiled all = trials_.place_all(options, kAnyBytes);
    EXPECT_EQ(all.most_bytes, trials_.exact(options).most_bytes);
  }
}

// Steps without updates are taken from a plan with another ring. They must be the ones that a
// compile makes.
TEST_F(TrialsTest, StepsWithoutARingComeFromAPlanAlike) {
  for (schedule::StepOptions options : examples()) {
    for (const auto update :
         {schedule::UpdatePlacement::kNextForward, schedule::UpdatePlacement::kInBackward}) {
      options.update = update;
      options.carried_units = 1;
      options.update_piece_elems = options.piece_elems;
      const planner::Compiled shallow = trials_.place_all(options, kAnyBytes);
      options.update_lookahead += 3;
      options.keeps_update_ring = true;
      planner::Compiled deep = trials_.training(options);
      trials_.complete(deep, &shallow);
      planner::Trials::link(deep);
      const planner::Compiled exact = trials_.exact(options);
      EXPECT_EQ(deep.need.peak_bytes(), exact.need.peak_bytes());
      for (const schedule::StepKind kind : schedule::kStepKinds) {
        schedule::Schedule made = deep.schedules[kind];
        for (schedule::Instruction& instruction : made.instructions) instruction.cost_s = 0;
        EXPECT_TRUE(made == exact.schedules[kind]);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
