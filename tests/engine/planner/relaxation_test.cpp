// The least time of a step: no work that a plan must do is left out of it.
#include "engine/planner/bound/relaxation.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/plan.hpp"

namespace sluice::planner {
namespace {

class LeastStep : public ::testing::Test {
 protected:
  // The bound of a configuration with these settings, next to the work of its cost model.
  void settle(const std::vector<std::string>& settings) {
    std::vector<std::string> all{"model.heads=1",      "data.paths=x",       "train.threads=1",
                                 "memory.device=1GiB", "memory.pinned=1GiB", "memory.storage=1GiB"};
    all.insert(all.end(), settings.begin(), settings.end());
    const config::Config config = config::parse_config("", "test", all);
    const model::Model model(config::model_shape(config));
    const model::BatchShape batch = config::batch_shape(config);
    CostModel costs(config, model, batch, hardware_);
    rates_ = costs.rates();
    duplex_ = costs.simulation_model().storage_duplex;
    bound_s_ = least_step_s(config, model, *kernels_, hardware_);
    parameters_ = static_cast<double>(model.parameter_count());
  }

  const std::unique_ptr<kernels::Kernels> kernels_ = kernels::make_host_kernels({1});
  HardwareProfile hardware_;
  StepRates rates_;
  double duplex_ = 0;
  double bound_s_ = 0;
  double parameters_ = 0;
};

// Windows may keep all weights on the device between passes. Where their homes are pinned, this
// saves no read of the optimizer's state.
TEST_F(LeastStep, ReadsAndWritesAllStateOnStorage) {
  settle({"model.layers=4", "model.hidden=256", "train.seq=1", "train.micro_batch=1",
          "memory.place.weight=pinned", "memory.place.gradient=pinned",
          "memory.place.optimizer=storage"});
  constexpr double kStateBytes = 12;  // of a parameter: master and two moments
  const double moved_s =
      kStateBytes * parameters_ * (rates_.storage_read_s + rates_.storage_write_s) / duplex_;
  EXPECT_GT(bound_s_, 0.999 * moved_s);
}

// The tolerances of the program are far above the microseconds of such a step.
TEST_F(LeastStep, HoldsForTinyModels) {
  for (const char* hidden : {"model.hidden=2", "model.hidden=8", "model.hidden=64"}) {
    SCOPED_TRACE(hidden);
    settle({"model.layers=1", hidden, "model.vocab=2", "train.seq=1", "train.micro_batch=1",
            "recompute.policy=none"});
    EXPECT_GT(bound_s_, 0.999 * (rates_.forward_s + rates_.backward_s));
  }
}

// Machines of which any rates are the least that a profile may state, or fast ones.
TEST_F(LeastStep, IsAtMostTheStepOfAPlanOnTheSlowestMachines) {
  const std::vector<std::string> settings{
      "model.layers=1",        "model.hidden=64",
      "model.heads=2",         "train.seq=16",
      "data.paths=x",          "train.threads=1",
      "memory.device=12MiB",   "memory.pinned=2MiB",
      "memory.storage=1GiB",   "train.micro_batch=1",
      "train.accumulate=1",    "memory.prefetch=1",
      "recompute.policy=none", "memory.place.activation=device"};
  const config::Config config = config::parse_config("", "test", settings);
  const model::Model model(config::model_shape(config));
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const CounterRng random(seed, stream_of("test/slowest-machines"));
    std::uint64_t drawn = 0;
    const auto rate = [&](double least, double most) {
      return std::array{least, std::sqrt(least * most), most}.at(random.below(drawn++, 3));
    };
    HardwareProfile machine;
    for (double HardwareProfile::*member :
         {&HardwareProfile::memory_bandwidth_bytes_per_s,
          &HardwareProfile::single_core_copy_bytes_per_s,
          &HardwareProfile::storage_read_bytes_per_s, &HardwareProfile::storage_write_bytes_per_s,
          &HardwareProfile::storage_duplex_bytes_per_s, &HardwareProfile::h2d_bytes_per_s,
          &HardwareProfile::d2h_bytes_per_s}) {
      machine.*member = rate(1e6, 1e13);
    }
    machine.gemm_f32_flops_per_s = rate(1e6, 1e15);
    machine.gemm_bf16_flops_per_s = rate(1e6, 1e15);
    machine.adam_params_per_s = rate(1e4, 1e12);
    const auto result = make_plan(config, model, *kernels_, machine);
    const Plan* const plan = std::get_if<Plan>(&result);
    ASSERT_NE(plan, nullptr) << std::get<Refusal>(result).sentence();
    EXPECT_GT(plan->bound_s, 0);
    EXPECT_LE(plan->bound_s, plan->step_s() * (1 + 1e-9));
  }
}

// "auto" would be a machine without limits.
TEST_F(LeastStep, BudgetsOfAPlanAreNumbers) {
  for (const char* open : {"memory.device=auto", "memory.pinned=auto", "memory.storage=auto"}) {
    const std::vector<std::string> settings{
        "model.layers=1",     "model.hidden=8",     "model.heads=1",       "data.paths=x",
        "memory.device=1GiB", "memory.pinned=1GiB", "memory.storage=1GiB", open};
    const config::Config config = config::parse_config("", "test", settings);
    const model::Model model(config::model_shape(config));
    EXPECT_THROW(make_plan(config, model, *kernels_, hardware_), InternalError) << open;
  }
}

}  // namespace
}  // namespace sluice::planner
