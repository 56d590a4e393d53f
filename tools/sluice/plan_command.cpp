#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "engine/planner/free_optimizer.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/planner/outlook.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "engine/train/plan/events.hpp"
#include "engine/train/plan/mesh_search.hpp"
#include "engine/train/plan/model_flops.hpp"
#include "engine/train/plan/plan_outlook.hpp"
#include "engine/train/plan/prepare.hpp"
#include "tools/sluice/arguments.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/kept_heap.hpp"
#include "tools/sluice/plan_text.hpp"
#include "tools/sluice/progress.hpp"
#include "tools/sluice/terminal.hpp"
#include "tools/sluice/waiting_notice.hpp"

namespace sluice::cli {

namespace {

// The setting that gives the world so many ranks: each pipeline and tensor group takes
// some of them.
std::string data_ranks(const PlanArguments& arguments) {
  std::vector<std::string> overrides = arguments.config.overrides;
  // A server's order of updates needs the ranks that are asked for here.
  for (const char* setting :
       {"parallel.data=1", "parallel.server_mode=bsp", "parallel.updates=1"}) {
    overrides.emplace_back(setting);
  }
  const auto parallel = config::load_config(arguments.config.path, overrides).parallel;
  const std::int64_t of_one = parallel.pipeline * parallel.inner_ranks();
  if (arguments.world % of_one != 0) {
    throw InputError(
        "--world is " + std::to_string(arguments.world) +
        ", and must be a multiple of parallel.pipeline = " + std::to_string(parallel.pipeline) +
        (parallel.inner_ranks() == 1
             ? std::string()
             : " times those of a group, " + std::to_string(parallel.inner_ranks())));
  }
  return "parallel.data=" + std::to_string(arguments.world / of_one);
}

// The ranks of this machine, which share its memory. All of them, where no profile counts a node's.
int ranks_here(const config::Config& config, const planner::HardwareProfile& hardware) {
  const auto ranks = static_cast<std::int32_t>(config.parallel.ranks());
  return hardware.rank_links ? hardware.rank_links->ranks_of_node(ranks) : ranks;
}

// Plans on the mesh of the configuration, or on the best one. Adds the meshes that were tried.
train::Prepared prepared_for(const PlanArguments& arguments,
                             const planner::HardwareProfile& hardware,
                             std::vector<train::TriedMesh>& tried) {
  std::vector<std::string> overrides = arguments.config.overrides;
  if (!arguments.mesh.empty()) {
    if (arguments.world == 0 || arguments.hardware.empty()) {
      throw InputError(
          "--mesh auto needs --world, the number of ranks, and --hardware, the profile");
    }
    for (const char* key : {"data", "tensor", "pipeline"}) {
      overrides.push_back(std::string("parallel.") + key + "=1");
    }
    const config::Config loaded = config::load_config(arguments.config.path, overrides);
    config::check_supported(loaded);
    train::MeshChoice choice = train::choose_mesh(loaded, hardware, arguments.world);
    tried = std::move(choice.tried);
    if (!choice.best) throw InputError("--mesh: no mesh fits; the nearest, " + choice.refusal);
    return std::move(*choice.best);
  }
  if (arguments.world > 0) overrides.push_back(data_ranks(arguments));
  const config::Config loaded = config::load_config(arguments.config.path, overrides);
  config::check_supported(loaded);
  return train::prepare(
      loaded, hardware,
      arguments.hardware.empty() ? train::PlannedMachine::kThis : train::PlannedMachine::kProfile,
      ranks_here(loaded, hardware));
}

}  // namespace

int plan_command(const PlanArguments& arguments) {
  keep_freed_memory();
  const bool this_machine = arguments.hardware.empty();
  const planner::HardwareProfile hardware =
      this_machine
          ? planner::load_profile_or_default(planner::default_profile_path())
          : planner::load_named_profile(arguments.hardware, planner::bundled_profile_directory());
  std::optional<WaitingNotice> waiting;
  if (!arguments.quiet) waiting.emplace(kPlanningText);
  std::vector<train::TriedMesh> tried;
  train::Prepared prepared = prepared_for(arguments, hardware, tried);
  if (const planner::Refusal* refusal = prepared.refusal()) {
    waiting.reset();
    if (arguments.json) std::cout << json_text(train::refused_event(*refusal)) << std::endl;
    print_to_stderr("sluice: " + arguments.config.path + ": " + refusal->sentence() + "\n");
    return 2;
  }
  const config::Config& config = prepared.config;
  const planner::Plan& plan = *prepared.plan();
  if (this_machine) planner::check_storage_paths(config, plan.need.storage_bytes);
  train::RunEvent event = train::complete_event(prepared);
  if (arguments.next) {
    event["outlook"]["next"] = train::next_changes_json(train::next_changes(prepared));
  }
  waiting.reset();
  if (!tried.empty()) event["meshes"] = train::meshes_json(tried);
  if (arguments.explain) event["outlook"]["explain"] = planner::search_lines(plan);
  if (arguments.free_optimizer) {
    event["free_optimizer_step_time_s"] = plan.step_share(
        planner::simulate_free_optimizer(plan.training(), prepared.simulation_model()).total_s);
  }
  if (arguments.json) {
    std::cout << json_text(event) << std::endl;
  } else {
    const Console console;
    Progress(config, console).plan(event);
    console.answer(outlook_text(event["outlook"]));
    if (!tried.empty()) console.answer(meshes_text(event["meshes"]));
  }
  if (!arguments.trace.empty()) {
    TraceRecorder trace;
    schedule::simulate(plan.training(), prepared.simulation_model(), &trace);
    write_output("--trace", arguments.trace, trace.to_json());
  }
  return 0;
}

}  // namespace sluice::cli
