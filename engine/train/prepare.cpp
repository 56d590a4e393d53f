#include "engine/train/prepare.hpp"

#include <utility>

#include "engine/config/shapes.hpp"
#include "engine/planner/cost_model.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/train/what_if.hpp"
#include "kernels/host/parallel.hpp"

namespace sluice::train {

schedule::SimulationModel Prepared::simulation_model() const {
  const model::BatchShape batch = config::batch_shape(config);
  return planner::CostModel(config, model, batch, hardware).simulation_model();
}

Prepared prepare(const config::Config& given, const planner::HardwareProfile& hardware,
                 PlannedMachine machine, int ranks) {
  const bool here = machine == PlannedMachine::kThis;
  config::Config config = given;
  if (here) {
    settle_backend(config);
  } else {
    settle_described_backend(config, hardware);
  }
  if (config.train.threads == 0) {
    config.train.threads = here ? kernels::host::Parallel::default_threads() : hardware.cores;
  }
  Backend backend = here ? make_backend(config) : make_described_backend(config, hardware);
  planner::MachineRoom room;
  if (here) {
    room = planner::settle_budgets(config, backend.device_memory_bytes, ranks);
  } else {
    planner::settle_budgets_elsewhere(config);
  }
  Prepared prepared = prepare_with(config, hardware, std::move(backend));
  if (auto* refusal = std::get_if<planner::Refusal>(&prepared.result); refusal != nullptr && here) {
    planner::keep_possible_suggestions(*refusal, prepared.config, room);
  }
  if (auto* refusal = std::get_if<planner::Refusal>(&prepared.result)) {
    refusal->other_changes = changes_that_fit(prepared);
  }
  return prepared;
}

Prepared prepare_with(const config::Config& given, const planner::HardwareProfile& hardware,
                      Backend backend) {
  config::Config config = given;
  model::Model model(config::model_shape(config));
  planner::SplitPlan plan = planner::plan_split(config, model, *backend.device_kernels, hardware,
                                                backend.host_kernels.get());
  return {config,
          hardware,
          std::move(backend),
          std::move(model),
          std::move(plan.result),
          std::move(plan.tried)};
}

}  // namespace sluice::train
