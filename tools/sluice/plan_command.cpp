#include <cstdio>
#include <fstream>
#include <iostream>

#include "base/error.hpp"
#include "engine/planner/cost_model.hpp"
#include "engine/planner/free_optimizer.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/train/backend.hpp"
#include "engine/train/events.hpp"
#include "engine/train/model_flops.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/progress.hpp"
#include "tools/sluice/waiting_notice.hpp"

namespace sluice::cli {

int plan_command(const PlanArguments& arguments) {
  if (arguments.world != 1) {
    throw InputError("--world " + std::to_string(arguments.world) +
                     ": more than one rank is not available in this version; use --world 1");
  }
  config::Config config = config::load_config(arguments.config.path, arguments.config.overrides);
  config::check_supported(config);
  std::optional<WaitingNotice> waiting(kPlanningText);
  const bool this_machine = arguments.hardware.empty();
  const planner::HardwareProfile hardware = this_machine ? planner::load_profile_or_default(planner::default_profile_path())
                                                : planner::load_profile(arguments.hardware);
  train::settle_backend(config);
  if (config.train.threads == 0) {
    config.train.threads = this_machine ? kernels::host::Parallel::default_threads() : hardware.cores;
  }
  const train::Backend backend = train::make_backend(config);
  planner::MachineRoom room;
  if (this_machine) {
    room = planner::settle_budgets(config, backend.device_memory_bytes);
  } else {
    planner::settle_budgets_elsewhere(config);
  }
  const model::Model model(planner::model_shape(config));
  auto planned =
      planner::make_plan(config, model, *backend.device_kernels, hardware, backend.host_kernels.get());
  waiting.reset();
  if (auto* refusal = std::get_if<planner::Refusal>(&planned)) {
    if (this_machine) planner::keep_possible_suggestions(*refusal, config, room);
    if (arguments.json) std::cout << train::refused_event(*refusal).dump() << std::endl;
    std::fprintf(stderr, "sluice: %s: %s\n", arguments.config.path.c_str(),
                 refusal->sentence().c_str());
    return 2;
  }
  const planner::Plan& plan = std::get<planner::Plan>(planned);
  if (this_machine) planner::check_storage_paths(config, plan.need.storage_bytes);
  train::RunEvent event = train::plan_event(plan);
  train::add_device(event, backend, train::measured_peak_flops(hardware, config));
  // Those by measured speed are known when a run begins.
  if (plan.need.storage_bytes > 0 && !config.memory.storage_shares.empty()) {
    event["storage_shares"] = planner::configured_layout(config).shares();
  }
  if (arguments.free_optimizer) {
    const planner::CostModel costs(config, model, planner::batch_shape(config), hardware);
    event["free_optimizer_step_time_s"] =
        planner::simulate_free_optimizer(plan.training, costs.simulation_model()).total_s;
  }
  if (arguments.json) {
    std::cout << event.dump() << std::endl;
  } else {
    Progress(config).plan(event);
  }
  if (!arguments.trace.empty()) {
    TraceRecorder trace;
    const model::BatchShape batch = planner::batch_shape(config);
    schedule::simulate(plan.training, planner::CostModel(config, model, batch, hardware).simulation_model(), &trace);
    std::ofstream file(arguments.trace, std::ios::trunc);
    file << trace.to_json();
    if (!file.flush()) throw InputError("--trace: '" + arguments.trace + "' cannot be written");
  }
  return 0;
}

}  // namespace sluice::cli
