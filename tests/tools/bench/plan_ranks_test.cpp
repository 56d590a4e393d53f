// ZeRO-3 hides its traffic behind compute, or its compute behind traffic; and the largest model of
// the tools fits a quarter of its budgets on each of four ranks.
#include "tools/bench/plan_ranks.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/planner/price/hardware_profile.hpp"
#include "engine/train/plan/prepare.hpp"

namespace sluice::bench {
namespace {

TEST(RankPlansAtScale, StepsComeNearTheirLimits) {
  const nlohmann::json plans = measure_rank_plans();
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0]["tokens"], 16384);
  EXPECT_GT(plans[0]["compute_s"], plans[0]["traffic_s"]);
  EXPECT_LE(plans[0]["over"].get<double>(), 0.03) << plans[0];
  EXPECT_EQ(plans[1]["tokens"], 4096);
  EXPECT_GT(plans[1]["traffic_s"], plans[1]["compute_s"]);
  EXPECT_LE(plans[1]["over"].get<double>(), 0.10) << plans[1];
  EXPECT_LE(plans[0]["over_own"].get<double>(), 0.03) << plans[0];
  EXPECT_LE(plans[1]["over_own"].get<double>(), 0.20) << plans[1];
  // Windows stay for the backward pass, so the plan sends less and is faster than that. It comes
  // near the least time that gathers before the loss and exchanges after it allow.
  for (const nlohmann::json& plan : plans) {
    EXPECT_LE(plan["step_s"].get<double>(), 1.05 * plan["ordered_s"].get<double>()) << plan;
    EXPECT_GE(plan["step_s"].get<double>(), plan["ordered_s"].get<double>()) << plan;
  }
}

// The configuration asks for 2 GiB of pinned memory and 20 GiB of storage.
TEST(RankPlansAtScale, AQuarterOfTheBudgetsOnFourRanksIsEnough) {
  config::Config config = config::load_config(
      SLUICE_MODEL_1B,
      std::vector<std::string>{"parallel.data=4", "parallel.zero=3", "train.accumulate=4",
                               "memory.pinned=512MiB", "memory.storage=5GiB", "train.threads=1"});
  const train::Prepared prepared =
      train::prepare(config, planner::HardwareProfile{}, train::PlannedMachine::kProfile);
  ASSERT_EQ(prepared.refusal(), nullptr) << prepared.refusal()->sentence();
  const auto& plan = std::get<planner::Plan>(prepared.result);
  ASSERT_EQ(plan.ranks.size(), 4u);
  for (const planner::RankFigures& rank : plan.ranks) {
    EXPECT_LE(rank.peak_bytes[1], 512 * kMiB);
    EXPECT_LE(rank.peak_bytes[2], 5 * kGiB);
  }
}

}  // namespace
}  // namespace sluice::bench
