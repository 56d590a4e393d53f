// Settings by hand as a user gives them, drawn from a seed, and the plan of a configuration on a
// machine that is only described.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/planner/price/hardware_profile.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "tools/replay/generated/draws.hpp"

namespace sluice::bench {

using replay::generated::Draws;
using Settings = std::vector<std::string>;  // each "key=value"

// A value for each key that the planner would otherwise choose.
Settings draw_complete_setting(Draws& draws);
// Values of two different keys; the planner chooses the rest.
Settings draw_two_settings(Draws& draws);
std::string settings_text(const Settings& settings);  // separated by spaces

struct PlannedStep {
  double step_s = 0;
  double cpu_s = 0;  // that planning took on the calling thread
  planner::TierBytes peak_bytes{};
};

// Plans the model of `model` with `setting` on top; later settings of a key win. Returns nothing if
// the planner refuses the configuration or its settings contradict each other. Any thread.
std::optional<PlannedStep> plan_with(const planner::HardwareProfile& hardware,
                                     const Settings& model, const Settings& setting);

}  // namespace sluice::bench
