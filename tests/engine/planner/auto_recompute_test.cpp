// recompute.policy = "auto" compared with every fixed policy: 48 blocks on a paper GPU at 40
// budgets of device memory. The suite plans some 300 times, which takes half a minute.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <variant>

#include "engine/config/shapes.hpp"
#include "engine/planner/plan.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "engine/planner/price/described_kernels.hpp"

namespace sluice::planner {
namespace {

using config::Config;
constexpr int kBudgets = 40;
constexpr double kNoPlan = std::numeric_limits<double>::infinity();

Config blocks_48(std::int64_t rows) {
  Config config;
  config.model.family = Config::Family::kGpt2;
  config.model.layers = 48;
  config.model.hidden = 1024;
  config.model.heads = config.model.kv_heads = 16;
  config.model.ffn = 4096;
  config.model.vocab = 50257;
  config.model.max_seq = config.train.seq = 1024;
  config.train.micro_batch = rows;
  config.train.clip = 1.0;
  config.optimizer.states = Config::States::kSplit;
  config.memory.backend = Config::Backend::kCuda;
  config.memory.pinned_bytes = 56 * kGiB;
  config.memory.storage_bytes = 1024 * kGiB;
  return config;
}

std::variant<Plan, Refusal> planned_there(const Config& config) {
  static const HardwareProfile machine =
      load_named_profile("rtx4090-64g-1nvme", SLUICE_HARDWARE_PROFILES);
  static const auto host = kernels::make_host_kernels({1});
  static const DescribedKernels kernels(kernels::make_host_kernels({1}));
  return make_plan(config, model::Model(config::model_shape(config)), kernels, machine, host.get());
}

// The seconds of a simulated step; kNoPlan if the configuration is refused.
double step_s(const Config& config) {
  const auto planned = planned_there(config);
  const Plan* plan = std::get_if<Plan>(&planned);
  if (plan == nullptr) return kNoPlan;
  EXPECT_LE(plan->bound_s, plan->simulation.total_s);
  return plan->simulation.total_s;
}

// Plans at budgets from `least` to `most`, where auto takes at most `slack` times as long as each
// policy by name. Returns at how many budgets it is faster than all of them.
int compare_at_all_budgets(Config config, double least_gib, double most_gib, double slack) {
  using Policy = Config::Recompute;
  int faster = 0;
  for (int i = 0; i < kBudgets; ++i) {
    const double gib = least_gib + (most_gib - least_gib) * i / (kBudgets - 1);
    config.memory.device_bytes = static_cast<std::uint64_t>(gib * static_cast<double>(kGiB));
    config.recompute.policy = Policy::kAuto;
    const double auto_s = step_s(config);
    EXPECT_LT(auto_s, kNoPlan) << gib;
    double best_s = kNoPlan;
    const auto beside = [&](Policy policy, std::int64_t every = 1) {
      config.recompute.policy = policy;
      config.recompute.every = every;
      const double fixed_s = step_s(config);
      EXPECT_LE(auto_s, fixed_s * slack)
          << gib << " GiB, policy " << static_cast<int>(policy) << ":" << every;
      best_s = std::min(best_s, fixed_s);
    };
    for (const Policy policy : {Policy::kNone, Policy::kUnit, Policy::kSelective, Policy::kSqrt}) {
      beside(policy);
    }
    for (const std::int64_t every : {2, 4, 16}) beside(Policy::kEvery, every);
    faster += auto_s < best_s * (1 - 1e-4) ? 1 : 0;
  }
  return faster;
}

// From the least memory that takes nested segments to enough for all activations.
TEST(AutoRecompute, IsNeverSlowerWithAllElseOnTheDevice) {
  Config config = blocks_48(8);
  Config::Places& place = config.memory.place;
  place.weight = place.gradient = place.optimizer = place.activation = Config::Place::kDevice;
  EXPECT_GE(compare_at_all_budgets(config, 9.75, 22, 1 + 1e-9), 30);
}

// Places and recomputation depend on each other, and the search is greedy.
TEST(AutoRecompute, IsHardlySlowerWithStateAnywhere) {
  EXPECT_GE(compare_at_all_budgets(blocks_48(4), 1, 16, 1.02), 20);
}

// Where the inputs of all blocks do not fit, outputs are dropped and recomputed; below every:2, the
// segments nest.
TEST(AutoRecompute, NestsSegmentsWhereUnitInputsDoNotFit) {
  Config config = blocks_48(8);
  Config::Places& place = config.memory.place;
  place.weight = place.gradient = place.optimizer = place.activation = Config::Place::kDevice;
  const auto planned_in = [&](double gib, Config::Recompute policy) {
    config.recompute.policy = policy;
    config.recompute.every = 2;
    config.memory.device_bytes = static_cast<std::uint64_t>(gib * static_cast<double>(kGiB));
    return planned_there(config);
  };
  EXPECT_TRUE(std::holds_alternative<Refusal>(planned_in(10.25, Config::Recompute::kUnit)));
  EXPECT_TRUE(std::holds_alternative<Plan>(planned_in(10.25, Config::Recompute::kEvery)));
  EXPECT_EQ(std::get<Plan>(planned_in(10.25, Config::Recompute::kAuto)).recompute.policy,
            "segments");
  EXPECT_TRUE(std::holds_alternative<Refusal>(planned_in(10, Config::Recompute::kEvery)));
  EXPECT_EQ(std::get<Plan>(planned_in(10, Config::Recompute::kAuto)).recompute.policy, "nested");
}

}  // namespace
}  // namespace sluice::planner
