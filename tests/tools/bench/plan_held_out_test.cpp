// Draws of held-out cases, the mark that a case is held against, and one small run.
#include "tools/bench/plan_held_out.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/config/config.hpp"
#include "tests/support/thrown.hpp"
#include "tools/bench/bench_table.hpp"

namespace sluice::bench {
namespace {

constexpr planner::TierBytes kBudgets{100, 200, 300};

TEST(HeldOutPlans, ASeedDrawsTheSameCases) {
  for (int number = 0; number < 24; ++number) {
    const HeldOutCase drawn = draw_held_out_case(5, number, 0);
    const HeldOutCase again = draw_held_out_case(5, number, 0);
    EXPECT_EQ(drawn.settings, again.settings);
    EXPECT_EQ(drawn.machine, again.machine);
    EXPECT_EQ(drawn.budgets, again.budgets);
    EXPECT_NE(drawn.settings, draw_held_out_case(5, number, 1).settings);
    EXPECT_NE(drawn.settings, draw_held_out_case(5, number + 1, 0).settings);
    EXPECT_NE(drawn.settings, draw_held_out_case(6, number, 0).settings);
  }
}

// The configuration would refuse a model whose heads do not divide its width, and so on.
TEST(HeldOutPlans, EveryDrawnCaseIsAValidConfiguration) {
  for (int number = 0; number < 1000; ++number) {
    const HeldOutCase drawn = draw_held_out_case(7, number, 0);
    EXPECT_NO_THROW(config::parse_config("", "drawn", drawn.settings)) << drawn.model;
    EXPECT_GT(drawn.budgets[0], 0u);
    EXPECT_LE(drawn.budgets[0], drawn.hardware.gpu_or_default().memory_bytes);
    EXPECT_LT(drawn.budgets[1], drawn.hardware.memory_bytes);
  }
}

TEST(HeldOutPlans, APlanOfALargerBudgetCountsIfItFits) {
  const std::vector<FoundPlan> plans{{"auto", 2.0, {100, 200, 300}},
                                     {"auto, pinned x 2", 1.5, {100, 200, 0}},
                                     {"auto, device x 2", 1.0, {101, 0, 0}}};
  const FoundPlan* best = best_that_fits(plans, kBudgets);
  ASSERT_NE(best, nullptr);
  EXPECT_EQ(best->finder, "auto, pinned x 2");
}

TEST(HeldOutPlans, AmongEqualPlansTheFirstIsTheBest) {
  const std::vector<FoundPlan> plans{{"auto", 1.0, {1, 1, 1}}, {"by hand", 1.0, {1, 1, 1}}};
  EXPECT_EQ(best_that_fits(plans, kBudgets)->finder, "auto");
  EXPECT_EQ(best_that_fits({}, kBudgets), nullptr);
  EXPECT_EQ(best_that_fits(plans, {0, 1, 1}), nullptr);
}

// One block and ample budgets, so that a plan takes some hundredths of a second. Budgets grow with
// the number. Those of the first attempt are too small, so it is refused.
HeldOutCase small_case(std::uint64_t seed, int number, int attempt) {
  HeldOutCase drawn = draw_held_out_case(seed, number, attempt);
  drawn.model = "small model " + std::to_string(number);
  drawn.settings = {"model.layers=1",  "model.hidden=256",      "model.heads=4",
                    "model.vocab=512", "train.micro_batch=1",   "train.seq=128",
                    "train.clip=0",    "optimizer.states=split"};
  const auto more = static_cast<std::uint64_t>(number) * 8 * kMiB;
  drawn.budgets = {256 * kMiB + more, 256 * kMiB + more, kGiB};
  if (attempt == 0) drawn.budgets = {kMiB, kMiB, kMiB};
  return drawn;
}

nlohmann::json small_run(int cases, int threads, int* lines) {
  HeldOutOptions options;
  options.seed = 4;
  options.cases = cases;
  options.settings = 6;
  options.threads = threads;
  options.draw = small_case;
  return measure_held_out_plans(options, [&](const std::string&) { ++*lines; });
}

TEST(HeldOutPlans, TheMarkIsNeverSlowerThanAuto) {
  int lines = 0;
  const nlohmann::json figures = small_run(2, 2, &lines);
  EXPECT_EQ(lines, 2);
  ASSERT_EQ(figures.at("cases").size(), 2u);
  EXPECT_EQ(figures.at("refused"), 2);
  EXPECT_EQ(figures.at("failures"), 0);
  const std::string table =
      bench_table({{"event", "bench"}, {"name", "plan"}, {"figures", {{"held_out", figures}}}});
  for (const nlohmann::json& row : figures.at("cases")) {
    EXPECT_LE(row.at("best_s"), row.at("step_s"));
    EXPECT_DOUBLE_EQ(row.at("excess").get<double>(),
                     row.at("step_s").get<double>() / row.at("best_s").get<double>() - 1);
    EXPECT_LE(row.at("excess"), figures.at("worst_excess"));
    EXPECT_GT(row.at("fits"), 0);
    EXPECT_TRUE(testing::mentions(table, row.at("model").get<std::string>()));
    EXPECT_TRUE(testing::mentions(table, row.at("best_by").get<std::string>()));
  }
  // Threads and the number of cases leave the plans as they are.
  const nlohmann::json alone = small_run(1, 1, &lines).at("cases").at(0);
  for (const char* figure : {"settings", "machine", "step_s", "best_s", "best_by", "more_memory"}) {
    EXPECT_EQ(alone.at(figure), figures.at("cases").at(0).at(figure)) << figure;
  }
}

TEST(HeldOutPlans, AFailureOfAThreadReachesTheCaller) {
  HeldOutOptions options;
  options.draw = [](std::uint64_t seed, int number, int) {
    if (number == 2) throw IoError("open", "profile", 0, 0, 5);
    return small_case(seed, number, 0);
  };
  EXPECT_THROW(measure_held_out_plans(options), Error);
  options.cases = 1;
  EXPECT_TRUE(testing::mentions(
      testing::message_of<InternalError>([&] { measure_held_out_plans(options); }), "refuses 64"));
}

}  // namespace
}  // namespace sluice::bench
