// Plans of machines that are only described, and the step that all plans share.
#include <utility>

#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/default_budgets.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/train/plan/prepare.hpp"
#include "engine/train/plan/what_if.hpp"

namespace sluice::train {

schedule::SimulationModel Prepared::simulation_model() const {
  const model::BatchShape batch = config::batch_shape(config);
  return planner::CostModel(config, model, batch, hardware).simulation_model();
}

config::Config settle_described(config::Config config, const planner::HardwareProfile& hardware) {
  settle_described_backend(config, hardware);
  if (config.train.threads == 0) config.train.threads = hardware.cores;
  planner::settle_auto_budgets(config, hardware);
  return config;
}

Prepared prepare_described(const config::Config& given, const planner::HardwareProfile& hardware) {
  const config::Config config = settle_described(given, hardware);
  Prepared prepared = prepare_with(config, hardware, make_described_backend(config, hardware),
                                   planner::WorldScope::kClasses);
  if (auto* refusal = std::get_if<planner::Refusal>(&prepared.result)) {
    refusal->other_changes = changes_that_fit(prepared);
  }
  return prepared;
}

Prepared prepare_with(const config::Config& given, const planner::HardwareProfile& hardware,
                      Backend backend, planner::WorldScope scope) {
  config::Config config = config::rested(given);
  model::Model model(config::model_shape(config), config::tensor_share(config, 0));
  planner::SplitPlan plan = planner::plan_split(config, model, *backend.device_kernels, hardware,
                                                backend.host_kernels.get(), scope);
  return {config,
          hardware,
          std::move(backend),
          std::move(model),
          std::move(plan.result),
          std::move(plan.tried),
          scope};
}

}  // namespace sluice::train
