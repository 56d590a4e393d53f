// Drawn configurations are planned or refused, and those that run have one rank's bits. By name
// (test_drawn_sweep) there are more of them. SLUICE_DRAWN_SEED is the first seed of another sample.
#include "tests/law1/drawn_configurations.hpp"

#include <cstdio>
#include <cstdlib>

#include "engine/planner/world_digest.hpp"
#include "engine/train/plan/prepare.hpp"
#include "engine/train/world_plan.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

#ifdef SLUICE_DRAWN_SWEEP
constexpr std::size_t kPlannedDraws = 2000;
constexpr std::size_t kRunDraws = 60;
#else
constexpr std::size_t kPlannedDraws = 100;
constexpr std::size_t kRunDraws = 6;
#endif

std::uint64_t first_seed() {
  const char* const text = std::getenv("SLUICE_DRAWN_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

Overrides all_of(const DrawnConfiguration& drawn) {
  return drawn.model + drawn.mesh + drawn.memory;
}

TEST(DrawnConfigurations, ArePlannedOrRefused) {
  const TrainingBench bench;
  std::size_t planned = 0, refused = 0, failed = 0, durable_ranks = 0;
  const std::size_t count = sweep(kPlannedDraws);
  for (std::uint64_t seed = first_seed(); seed < first_seed() + count; ++seed) {
    const DrawnConfiguration drawn = drawn_configuration(seed);
    const Overrides settings = all_of(drawn);
    const NamedInCrash named(seed, settings);
    const PlannedDraw plan = plan_drawn(bench, settings);
    planned += plan.outcome == DrawnOutcome::kPlanned ? 1 : 0;
    refused += plan.outcome == DrawnOutcome::kRefused ? 1 : 0;
    failed += plan.outcome == DrawnOutcome::kFailed ? 1 : 0;
    durable_ranks += plan.outcome == DrawnOutcome::kPlanned && drawn.durable ? 1 : 0;
    EXPECT_NE(plan.outcome, DrawnOutcome::kFailed) << "seed " << seed << ": " << plan.why << "\n"
                                                   << ::testing::PrintToString(settings);
  }
  std::printf("%zu planned, %zu refused, %zu failed\n", planned, refused, failed);
  // Both ends are common, or the draws say little.
  EXPECT_GT(planned, count / 5);
  EXPECT_GT(refused, count / 5);
  EXPECT_GT(durable_ranks, count / 20);
}

// Rank 0 plans with its configuration, and the others read the one that it writes. A key that rests
// is written at its default, and so must change nothing in a plan.
TEST(DrawnConfigurations, KeysWithoutMeaningDoNotChangeThePlanOfTheOtherRanks) {
  const TrainingBench bench;
  const Overrides one{"parallel.data=1"};
  const std::vector<std::pair<std::string, Overrides>> rows{
      {"parallel.zero=3", one},
      {"parallel.bucket=64KiB", one},
      {"memory.place.partial=pinned", one},
      {"parallel.schedule=zb-h1", {"parallel.pipeline=1"}},
      {"optimizer.momentum=0.5", {"optimizer.name=adamw"}},
      {"optimizer.betas=[0.5, 0.6]", {"optimizer.name=sgd"}},
      {"optimizer.eps=1e-3", {"optimizer.name=sgd"}},
      {"optimizer.nesterov=true", {"optimizer.name=adamw"}},
      {"optimizer.clip_threshold=3", {"optimizer.name=adamw"}},
      {"optimizer.beta2_decay=-0.7", {"optimizer.name=adamw"}},
      {"train.loss_scaling=static", {"train.precision=bf16"}},
      {"train.loss_scale=4", {"train.precision=fp32"}},
      {"train.loss_scale_window=9", {"train.precision=bf16"}}};
  for (const auto& [key, later] : rows) {
    for (const char* clip : {"train.clip=0", "train.clip=1"}) {
      SCOPED_TRACE(key + " " + clip);
      const config::Config own = bench.config(
          "run", kChosenByHand + places("storage", "storage", "storage") +
                     Overrides{"model.layers=2", "model.hidden=64", "model.heads=4", "train.seq=16",
                               "train.micro_batch=1", "train.accumulate=2", "parallel.tensor=2",
                               "train.threads=1", "memory.backend=host", clip, key} +
                     later);
      Prepared prepared = prepare_with(own, planner::HardwareProfile{}, make_backend(own));
      ASSERT_NE(prepared.plan(), nullptr);
      Prepared read = prepare_rank(plan_message(prepared), 0, {});
      EXPECT_EQ(planner::world_digest(*read.plan(), read.config),
                planner::world_digest(*prepared.plan(), prepared.config));
    }
  }
}

// A durable run stops in the middle and goes on from its commit.
TrainingRecord run_drawn(const TrainingBench& bench, const config::Config& config, bool durable) {
  if (!durable) return train_in_world(config);
  TrainingRecord whole;
  whole.append(train_in_world(config, until(kDrawnSteps / 2)));
  whole.append(train_in_world(config, until(0, bench.run_directory("run"))));
  return whole;
}

TEST(DrawnConfigurations, ThatRunHaveOneRanksBits) {
  std::size_t run = 0;
  const std::size_t count = sweep(kRunDraws);
  for (std::uint64_t seed = first_seed() + 100000; run < count; ++seed) {
    DrawnConfiguration drawn = drawn_configuration(seed);
    const TrainingBench bench, plain;
    const NamedInCrash named(seed, all_of(drawn));
    const PlannedDraw plan = plan_drawn(bench, all_of(drawn));
    if (plan.outcome == DrawnOutcome::kRefused) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + ::testing::PrintToString(all_of(drawn)));
    ASSERT_EQ(plan.outcome, DrawnOutcome::kPlanned) << plan.why;
    ++run;
    const TrainingRecord reference =
        train_in_world(plain.config("run", reference_of(drawn) + plan.settled));
    expect_same_bits(run_drawn(bench, bench.config("run", all_of(drawn)), drawn.durable),
                     reference);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::train
