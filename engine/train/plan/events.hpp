// The JSON events of a run (docs/guide/train.md): one object per line, for scripts and for the
// report.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/memory_kinds.hpp"
#include "engine/planner/plan.hpp"
#include "engine/run/run_event.hpp"
#include "engine/runtime/stall_causes.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/train/plan/backend.hpp"
#include "engine/train/plan/verb_use.hpp"

namespace sluice::train {

using run::EventSink;
using run::RunEvent;

RunEvent tier_bytes_json(const planner::TierBytes& bytes);
// {"load":{"device":…, …}, …}: phases without figures are left out.
RunEvent verb_bytes_json(const VerbUse::Peaks& peaks);
RunEvent link_bytes_json(const schedule::LinkBytes& bytes);
// {"compute_s":…, "stalled_s":…, "by_cause_s":{"storage_read":…, …}}: causes that took no time are
// left out.
RunEvent stalls_json(const runtime::Stalls& stalls);
RunEvent plan_event(const planner::Plan& plan);
// Adds the device that runs to a plan event: "backend" ("host" or "cuda"), "device_name" and
// "peak_flops_per_s" (null where doctor never measured it).
void add_device(RunEvent& plan, const Backend& backend, std::optional<double> peak_flops_per_s);
RunEvent refused_event(const planner::Refusal& refusal);

}  // namespace sluice::train
