// Plans that spill activations, and names that are refused. Runs that spill are law 1's.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// Passes of 512 rows take longer to recompute than their saved activations take to copy.
TEST(SpilledActivations, TakeThePlaceOfRecomputationWhereThatIsFaster) {
  const TrainingBench bench;
  const auto plan_of = [&](const std::string& tier, std::uint64_t device) {
    return planned(bench.config(
        "run", kSpillingLlama + activations(tier) +
                   Overrides{"train.seq=128", "train.micro_batch=4", "model.hidden=128",
                             "model.layers=8", "memory.device=" + std::to_string(device)}));
  };
  const auto recomputed = plan_of("device", 0);
  const auto& suggestions = std::get<planner::Refusal>(recomputed).suggestions;
  ASSERT_EQ(suggestions.front().front().first, "memory.device");
  const std::uint64_t least = suggestions.front().front().second;
  const std::vector<std::uint64_t> budgets{least, least + 2 * kMiB, least + 8 * kMiB};
  for (const std::uint64_t device : testing::sampled(budgets)) {
    SCOPED_TRACE(device);
    const auto kept = plan_of("device", device);
    const auto left = plan_of("auto", device);
    ASSERT_TRUE(std::get<planner::Plan>(kept).options.recompute.any());
    EXPECT_LT(std::get<planner::Plan>(left).recompute.freed_bytes,
              std::get<planner::Plan>(kept).recompute.freed_bytes);
    EXPECT_GT(std::get<planner::Plan>(left).activation_bytes.download, 0u);
    EXPECT_LT(std::get<planner::Plan>(left).simulation.total_s,
              std::get<planner::Plan>(kept).simulation.total_s);
  }
}

// From a budget that holds everything down to the least: spilled bytes grow with the missing room.
TEST(SpilledParts, NoMoreMoveThanTheDeviceLacksRoomFor) {
  const TrainingBench bench;
  const auto plan_of = [&](std::uint64_t device) {
    return planned(bench.config(
        "run",
        kSpillingLlama + Overrides{"train.seq=128", "train.micro_batch=4", "model.hidden=128",
                                   "model.layers=8", "recompute.policy=none", "train.accumulate=1",
                                   "memory.place.weight=pinned", "memory.prefetch=1",
                                   "memory.device=" + std::to_string(device)}));
  };
  const auto refused = plan_of(0);
  const std::uint64_t least =
      std::get<planner::Refusal>(refused).suggestions.front().front().second;
  const std::uint64_t most = std::get<planner::Plan>(plan_of(512 * kMiB)).peak_bytes[0];
  ASSERT_GT(most, least + 8 * kMiB);
  const auto spilled = [&](std::uint64_t device) {
    return std::get<planner::Plan>(plan_of(device)).activation_bytes.download;
  };
  const std::uint64_t all = spilled(least);
  const std::uint64_t few = spilled(most - 4 * kMiB);
  EXPECT_LT(few, all / 2);
  EXPECT_EQ(spilled(512 * kMiB), 0u);
  // The bytes sent away are at most the missing room, and one value more of one unit.
  EXPECT_LE(few, std::uint64_t{4} * kMiB + 2 * kMiB);
  double before_s = std::numeric_limits<double>::infinity();
  for (std::uint64_t device = least; device <= most; device += 4 * kMiB) {
    const double now_s = std::get<planner::Plan>(plan_of(device)).simulation.total_s;
    EXPECT_LE(now_s, before_s * 1.001) << device;
    before_s = now_s;
  }
}

TEST(SpilledParts, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const TrainingBench bench;
  const auto plan = [&](const std::string& entry) {
    planned(bench.config("run", kSpillingLlama + Overrides{"memory.place.saved." + entry}));
  };
  const auto refusal = [&](const std::string& entry) {
    return message_of<InputError>([&] { plan(entry); });
  };
  const std::string unknown = refusal("mlp_hiden=storage");
  EXPECT_EQ(unknown.rfind("memory.place.saved.mlp_hiden: nothing that is saved has this name", 0),
            0u)
      << unknown;
  const std::string of_head = refusal("head_normed=storage");
  EXPECT_EQ(of_head.rfind("memory.place.saved.head_normed: the head's passes follow", 0), 0u)
      << of_head;
  const std::string broken = refusal("a\nb=storage");
  EXPECT_EQ(broken.rfind("memory.place.saved.a?b: nothing", 0), 0u) << broken;
  EXPECT_LT(refusal(std::string(3000, 'q') + "=storage").size(), 1000u);
  for (const std::string& words : {unknown, of_head, broken}) {
    EXPECT_NE(words.find("\"mlp_hidden\""), std::string::npos) << words;
    EXPECT_EQ(words.find("\"head_"), std::string::npos) << words;
    EXPECT_EQ(words.find('\n'), std::string::npos);
  }
  EXPECT_NO_THROW(plan("head_normed=auto"));
}

}  // namespace
}  // namespace sluice::train
