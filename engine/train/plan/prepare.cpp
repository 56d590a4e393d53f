#include "engine/train/plan/prepare.hpp"

#include <utility>

#include "engine/planner/machine_check.hpp"
#include "engine/train/plan/what_if.hpp"
#include "kernels/host/parallel.hpp"

namespace sluice::train {

Prepared prepare(const config::Config& given, const planner::HardwareProfile& hardware,
                 PlannedMachine machine, int ranks, const DeviceShare& share) {
  if (machine == PlannedMachine::kProfile) return prepare_described(given, hardware);
  config::Config config = given;
  const std::string gpu_missing = settle_backend(config);
  if (config.train.threads == 0) config.train.threads = kernels::host::Parallel::default_threads();
  Backend backend = make_backend(config, share);
  backend.gpu_missing = gpu_missing;
  const planner::MachineRoom room =
      planner::settle_budgets(config, backend.device_memory_bytes, ranks);
  Prepared prepared = prepare_with(config, hardware, std::move(backend));
  if (auto* refusal = std::get_if<planner::Refusal>(&prepared.result)) {
    planner::keep_possible_suggestions(*refusal, prepared.config, room);
    planner::note_storage_obstacle(*refusal, prepared.config);
    refusal->other_changes = changes_that_fit(prepared);
  }
  return prepared;
}

}  // namespace sluice::train
