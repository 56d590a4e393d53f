// Step options as one line of JSON. Rank 0 of a job chooses the options and sends them in this form
// to the other ranks.
#pragma once

#include <string>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Equal options give equal texts. ASCII, without a line break.
std::string options_text(const schedule::StepOptions& options);

// The inverse. Every key must be there, and no other; lists by unit must have one length.
// Throws InputError that names the first key that is wrong.
schedule::StepOptions options_from_text(const std::string& text);

}  // namespace sluice::planner
