// Seeded random configurations and budgets. An accepted plan is a valid schedule that computes the
// same as the all-device one and runs inside its budgets, and it fits the peaks that it states. A
// refusal suggests changes that fit; with 2 MiB less of any of them the plan does not fit.
// test_training_sweep draws more of them.
#include <gtest/gtest.h>

#include "engine/config/schema.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/random_training.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

#ifdef SLUICE_PLAN_SWEEP
constexpr std::uint64_t kDrawnConfigurations = 500;
constexpr std::uint64_t kGrownConfigurations = 400;
constexpr std::uint64_t kRepeatedPlans = 1000;
#else
constexpr std::uint64_t kDrawnConfigurations = 200;
constexpr std::uint64_t kGrownConfigurations = 40;
constexpr std::uint64_t kRepeatedPlans = 150;
#endif
constexpr std::uint64_t kInterpretEvery = 8;  // of the accepted

struct Draft {
  Overrides model, memory;
};

Draft random_draft(std::uint64_t seed) {
  Draws draw(seed, "test/plan_or_refuse");
  Draft draft;
  draft.model = random_model(draw) + Overrides{"train.steps=2"};
  draft.memory = random_placement(draw) + random_movement(draw) + random_budgets(draw);
  return draft;
}

bool accepted(const config::Config& config) {
  return std::holds_alternative<Plan>(planned(config));
}

config::Config changed(config::Config config, const Suggestion& change) {
  for (const auto& [key, bytes] : change) {
    config::find_config_key(key)->assign(config, static_cast<std::int64_t>(bytes));
  }
  return config;
}

TierBytes budgets_of(const config::Config& config) {
  return {config.memory.device_bytes, config.memory.pinned_bytes, config.memory.storage_bytes};
}

void expect_valid(const Plan& plan, const config::Config& config) {
  EXPECT_LE(plan.bound_s, plan.simulation.total_s * (1 + 1e-9));
  for (const schedule::Schedule* schedule : plan.schedules.of(plan.options)) {
    EXPECT_EQ(schedule::validate(*schedule, budgets_of(config)), std::vector<std::string>{});
  }
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    EXPECT_LE(plan.peak_bytes[tier], budgets_of(config)[tier]);
  }
}

// Interprets two clipped steps. Returns the second one's norm, and the state after it.
std::pair<std::optional<schedule::Term>, decltype(schedule::Interpretation::exit)> two_steps(
    const Plan& plan) {
  schedule::CarriedState left;
  bool started = false;
  const auto pass = [&](const schedule::Schedule& schedule, std::uint64_t step) {
    schedule::InterpretOptions options;
    options.before = started ? &left : nullptr;
    options.step = step;
    schedule::Interpretation values = schedule::interpret(schedule, options);
    EXPECT_EQ(values.errors, std::vector<std::string>{});
    left = values.after;
    started = true;
    return values;
  };
  const auto redo = [&] {
    left = left.given_up();
    return pass(plan.schedules[schedule::StepKind::kRedo], 0).exit;
  };
  pass(plan.carries_updates() ? plan.schedules[schedule::StepKind::kFirst]
                              : plan.schedules[schedule::StepKind::kTraining],
       0);
  if (plan.speculates()) redo();
  schedule::Interpretation second = pass(plan.schedules[schedule::StepKind::kTraining], 1);
  if (plan.speculates()) second.exit = redo();
  if (plan.carries_updates())
    second.exit = pass(plan.schedules[schedule::StepKind::kDrain], 2).exit;
  return {second.norm, second.exit};
}

// Law 1, without a kernel.
void expect_plain_meaning(const Plan& plan, const config::Config& plain_config) {
  const auto meaning = two_steps(plan);
  EXPECT_TRUE(meaning.first.has_value());
  EXPECT_EQ(meaning, two_steps(std::get<Plan>(planned(plain_config))));
}

void expect_minimal(const Refusal& refusal, const config::Config& config) {
  EXPECT_NE(refusal.sentence(), "");
  EXPECT_FALSE(refusal.suggestions.empty());
  bool lacks = false;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    EXPECT_EQ(refusal.available_bytes[tier], budgets_of(config)[tier]);
    lacks |= refusal.needed_bytes[tier] > refusal.available_bytes[tier];
  }
  EXPECT_TRUE(lacks);
  const std::uint64_t alone = refusal.too_large ? refusal.too_large->device_bytes : 0;
  EXPECT_TRUE(alone == 0 || alone > config.memory.device_bytes);
  for (const Suggestion& suggestion : refusal.suggestions) {
    EXPECT_GE(changed(config, suggestion).memory.device_bytes, alone);
    EXPECT_TRUE(accepted(changed(config, suggestion))) << ::testing::PrintToString(suggestion);
    for (std::size_t i = 0; i < suggestion.size(); ++i) {
      Suggestion less = suggestion;
      less[i].second -= 2 * kMiB;
      EXPECT_FALSE(accepted(changed(config, less))) << ::testing::PrintToString(less);
    }
  }
}

// The sentence says so, since no other setting than the budget would help.
TEST(PlanOrRefuse, AUnitLargerThanTheDeviceIsNamed) {
  const TrainingBench bench;
  const auto refusal = [&](const std::string& device) {
    const auto result = planned(bench.config(
        "run", Overrides{"model.layers=2", "train.seq=64", "model.hidden=128", "model.heads=4",
                         "train.micro_batch=8", "memory.device=" + device}));
    return std::get<Refusal>(result);
  };
  const Refusal small = refusal("2MiB");
  ASSERT_TRUE(small.too_large);
  EXPECT_NE(small.sentence().find("the largest unit, " + small.too_large->unit + ", takes "),
            std::string::npos)
      << small.sentence();
  const std::uint64_t least = small.suggestions.front().front().second;
  EXPECT_GE(least, small.too_large->device_bytes);
  // Just below the least budget the unit fits by itself, but not with what is next to it.
  const Refusal near = refusal(std::to_string(small.too_large->device_bytes + 1));
  EXPECT_FALSE(near.too_large);
  EXPECT_EQ(near.sentence().find("the largest unit"), std::string::npos);
}

// The linear program has seconds of copies next to seconds of compute, whatever their ratio is.
TEST(PlanOrRefuse, ALinkOfAnySpeedIsPlanned) {
  const TrainingBench bench;
  config::Config config = bench.config(
      "run", tiny_stored_model(2) + Overrides{"recompute.policy=auto", "memory.place.weight=auto",
                                              "memory.place.optimizer=auto"});
  for (const double rate : {1e6, 1e7, 1e9, 1e15}) {
    SCOPED_TRACE(rate);
    config.memory.link_bandwidth_bytes_per_s = rate;
    const auto result = planned(config);
    const Plan* plan = std::get_if<Plan>(&result);
    ASSERT_NE(plan, nullptr);
    EXPECT_LE(plan->bound_s, plan->step_s() * (1 + 1e-9));
  }
}

TEST(PlanOrRefuse, ForRandomConfigurationsAndBudgets) {
  const TrainingBench bench;
  std::uint64_t plans = 0;
  std::uint64_t refusals = 0;
  const std::uint64_t configurations = sweep(kDrawnConfigurations);
  for (std::uint64_t seed = 0; seed < configurations; ++seed) {
    const Draft draft = random_draft(seed);
    SCOPED_TRACE(::testing::PrintToString(draft.model + draft.memory));
    const config::Config config = bench.config("run", draft.model + draft.memory);
    const auto result = planned(config);
    if (const auto* refusal = std::get_if<Refusal>(&result)) {
      ++refusals;
      expect_minimal(*refusal, config);
      continue;
    }
    const Plan& plan = std::get<Plan>(result);
    expect_valid(plan, config);
    if (plans % kInterpretEvery == 0) {
      expect_plain_meaning(
          plan, bench.config("plain", draft.model + places("device", "device", "device") +
                                          Overrides{"recompute.policy=none"}));
    }
    EXPECT_EQ(TrainingBench::run(config).end, train::TrainingEnd::kDone);
    ++plans;
  }
  // Budgets are drawn so that both ends are common.
  EXPECT_GT(plans, configurations / 4);
  EXPECT_GT(refusals, configurations / 4);
}

// The search finds places that no group of candidates has. So a plan once took less of a tier than
// any group, and its own peaks were refused as budgets.
TEST(PlanOrRefuse, APlanFitsTheBudgetsOfItsPeaks) {
  const TrainingBench bench;
  std::uint64_t plans = 0;
  const std::uint64_t configurations = sweep(kRepeatedPlans);
  for (std::uint64_t seed = 2000; seed < 2000 + configurations; ++seed) {
    const Draft draft = random_draft(seed);
    SCOPED_TRACE(::testing::PrintToString(draft.model + draft.memory));
    config::Config config = bench.config("run", draft.model + draft.memory);
    const auto result = planned(config);
    const auto* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) continue;
    ++plans;
    config.memory.device_bytes = plan->peak_bytes[0];
    config.memory.pinned_bytes = plan->peak_bytes[1];
    config.memory.storage_bytes = plan->peak_bytes[2];
    EXPECT_TRUE(accepted(config)) << seed << ", spills: "
                                  << schedule::spills_activations(plan->options.placement);
  }
  EXPECT_GT(plans, configurations / 4);
}

// More memory never turns a plan into a refusal, nor into one that is slower by more than 1%.
TEST(PlanOrRefuse, MoreMemoryNeverHurts) {
  const TrainingBench bench;
  std::uint64_t plans = 0;
  std::string slower;
  for (std::uint64_t seed = 1000; seed < 1000 + sweep(kGrownConfigurations); ++seed) {
    const Draft draft = random_draft(seed);
    SCOPED_TRACE(::testing::PrintToString(draft.model + draft.memory));
    config::Config config = bench.config("run", draft.model + draft.memory);
    auto result = planned(config);
    if (!std::holds_alternative<Plan>(result)) continue;
    ++plans;
    double fastest_s = std::get<Plan>(result).simulation.total_s;
    const auto plan_again = [&](const char* grown) {
      result = planned(config);
      ASSERT_TRUE(std::holds_alternative<Plan>(result)) << seed;
      const double time_s = std::get<Plan>(result).simulation.total_s;
      if (time_s > fastest_s * 1.01) {
        slower += " " + std::to_string(seed) + " (" + grown + ", " +
                  std::to_string(time_s / fastest_s) + ")";
      }
      fastest_s = std::min(fastest_s, time_s);
    };
    config.memory.device_bytes += 2 * kMiB;
    plan_again("device");
    config.memory.pinned_bytes += 12345678;
    plan_again("pinned");
    config.memory.storage_bytes += 1;
    plan_again("storage");
  }
  EXPECT_EQ(slower, "") << "of " << plans << " plans";
  EXPECT_GT(plans, sweep(kGrownConfigurations) / 8);
}

// Rules for whole tensors stage a unit as one piece. Coarse needs once cut it to the pieces of
// other rules, so that a group seemed to fit and nothing did.
TEST(PlanOrRefuse, UnitsOfWholeTensorsAreStagedWhole) {
  const TrainingBench bench;
  const auto config = [&](const std::string& device) {
    return bench.config(
        "run",
        Overrides{"model.family=llama", "model.layers=1", "model.hidden=512", "model.heads=1",
                  "model.vocab=1000", "train.seq=256", "train.micro_batch=4", "train.accumulate=16",
                  "train.precision=fp16", "train.clip=0", "optimizer.name=sm3",
                  "memory.pinned=5MiB", "memory.storage=64MiB", "memory.device=" + device});
  };
  for (const char* device : {"20MiB", "84MiB", "100MiB"}) {
    SCOPED_TRACE(device);
    const auto result = planned(config(device));
    if (const auto* refusal = std::get_if<Refusal>(&result)) {
      expect_minimal(*refusal, config(device));
    }
  }
}

// The shortfalls of two candidates differ by less than a step of suggestions; the smaller shortfall
// once made the larger suggestion.
TEST(PlanOrRefuse, AChangeOfSeveralBudgetsIsMinimalToo) {
  const TrainingBench bench;
  const config::Config config = bench.config(
      "run",
      Overrides{"model.family=gpt2", "model.layers=4", "model.hidden=72", "model.heads=6",
                "model.kv_heads=3", "model.vocab=300", "model.tie_embeddings=false", "model.ffn=40",
                "train.seq=16", "train.micro_batch=1", "memory.prefetch=1", "recompute.policy=none",
                "memory.device=2MiB", "memory.pinned=1MiB", "memory.storage=2MiB"} +
          places("storage", "storage", "auto"));
  const auto result = planned(config);
  const Refusal& refusal = std::get<Refusal>(result);
  EXPECT_GT(refusal.suggestions.front().size(), 1u);
  expect_minimal(refusal, config);
}

}  // namespace
}  // namespace sluice::planner
