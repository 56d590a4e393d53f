// Drawn configurations are planned or refused, and those that run have one rank's bits. By name
// (test_drawn_sweep) there are more of them. SLUICE_DRAWN_SEED is the first seed of another sample.
#include "tests/law1/drawn_configurations.hpp"

#include <cstdio>
#include <cstdlib>

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
