// The record of a search that `sluice plan --explain` prints.
#pragma once

#include <optional>
#include <string>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A shape of a plan that was tried or passed over.
struct Tried {
  std::string what;
  double bound_s = 0;            // the least time that the shape could take
  std::optional<double> best_s;  // of the plans tried for it; nothing: none was, or none fits
  schedule::StepOptions best;    // that plan
};

}  // namespace sluice::planner
