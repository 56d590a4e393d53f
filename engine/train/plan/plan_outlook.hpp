// The figures of a plan that `sluice plan` adds to its event, for people and scripts: speed, the
// critical path, the table of memory, break-even and wear (docs/guide/plan.md). All of them are
// simulated.
#pragma once

#include <optional>
#include <vector>

#include "engine/run/run_event.hpp"
#include "engine/train/plan/prepare.hpp"
#include "engine/train/plan/what_if.hpp"

namespace sluice::train {

// The event of a plan, with its device and the division of the batch: "batch":{"samples":…,
// "micro_batch":…, "accumulate":…}, and "tried" where the planner chose it. Precondition: prepared
// has a plan.
run::RunEvent prepared_event(const Prepared& prepared);

// The rate that utilization is held against: the manufacturer's for 16-bit products where the
// profile has it, else the measured one (model_flops.hpp).
std::optional<double> peak_flops(const planner::HardwareProfile& hardware,
                                 const config::Config& settled);

// Rates are those of all ranks together, the peak is that of one device. Precondition: prepared has
// a plan.
run::RunEvent outlook_json(const Prepared& prepared);
// The event of `sluice plan --json` without options: the plan, configured shares of storage paths,
// and the outlook. Precondition: prepared has a plan.
run::RunEvent complete_event(const Prepared& prepared);
run::RunEvent next_changes_json(const std::vector<NextChange>& changes);

}  // namespace sluice::train
