// Plans for a host program that trains nothing here: a request as JSON in, the event of `sluice
// plan --json` out. No device, driver or storage path is touched, and nothing is created.
#pragma once

#include <optional>
#include <string>

#include "engine/host/session_plan.hpp"

namespace sluice::host {

struct PlanAnswer {
  std::string json;                // the plan, or the refusal
  std::optional<Refused> refusal;  // with the least change that fits; none: it is a plan
};

// request: {"config": {"model": {…}, "memory": {…}, …} or the path of a TOML file,
//           "hardware": a profile's name or path, "world": ranks}
// hardware and world may be absent.
// Without hardware the measured profile of this machine counts, or else the default one.
// Throws InputError that names the member or key, and Unsupported.
PlanAnswer answer_plan(const std::string& request);

}  // namespace sluice::host
