// The least time of a step: no work that a plan must do is left out of it.
#include "engine/planner/relaxation.hpp"

#include <gtest/gtest.h>

#include "engine/config/shapes.hpp"
#include "engine/planner/plan.hpp"

namespace sluice::planner {
namespace {

class LeastStep : public ::testing::Test {
 protected:
  // The bound of a configuration with these settings, beside the work of its cost model.
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

}  // namespace
}  // namespace sluice::planner
