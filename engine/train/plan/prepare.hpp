// The one way from a configuration to a plan: settle the backend, the threads and the budgets, make
// the kernels and the model, and plan or refuse. `sluice train`, `sluice plan`, the benchmark of
// the offloaded step and the tests all start here. Nothing is created or changed on disk.
#pragma once

#include <variant>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/model/model.hpp"
#include "engine/planner/batch_split.hpp"
#include "engine/planner/plan.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "engine/schedule/simulate/simulate.hpp"
#include "engine/train/plan/backend.hpp"

namespace sluice::train {

// The machine that a plan is for.
enum class PlannedMachine {
  kThis,  // budgets are held against this machine's memory and disks
  // Budgets and threads come from the profile alone; no GPU or driver is asked. Ranks are planned
  // by classes (WorldScope), since no run follows.
  kProfile,
};

// Movable. A Session refers to its members, so they must not move while one exists.
struct Prepared {
  config::Config config;  // with backend, threads, budgets and micro-batches settled
  planner::HardwareProfile hardware;
  Backend backend;
  model::Model model;
  std::variant<planner::Plan, planner::Refusal> result;
  std::vector<planner::TriedSplit> splits;  // of a batch that the planner divided; else empty
  planner::WorldScope scope = planner::WorldScope::kAllRanks;

  // Null if the other one was the result.
  planner::Plan* plan() { return std::get_if<planner::Plan>(&result); }
  const planner::Refusal* refusal() const { return std::get_if<planner::Refusal>(&result); }
  // The machine as the plan's cost model sees it.
  schedule::SimulationModel simulation_model() const;
};

// A refusal for this machine suggests only budgets that the machine has room for.
// Throws InputError as settle_backend, settle_budgets and make_plan do.
// ranks: of the job on this machine, each with these budgets. share: of a GPU, on this machine.
Prepared prepare(const config::Config& config, const planner::HardwareProfile& hardware,
                 PlannedMachine machine, int ranks = 1, const DeviceShare& share = {});

// The configuration with the backend, threads and budgets of a machine that is only described.
config::Config settle_described(config::Config config, const planner::HardwareProfile& hardware);
// Prepares for PlannedMachine::kProfile alone. A program that calls no more links no driver.
Prepared prepare_described(const config::Config& config, const planner::HardwareProfile& hardware);

// With a backend of the caller's and the budgets that the configuration states.
// Precondition: config.train.threads and the budgets are settled.
Prepared prepare_with(const config::Config& config, const planner::HardwareProfile& hardware,
                      Backend backend, planner::WorldScope scope = planner::WorldScope::kAllRanks);

}  // namespace sluice::train
