// The outlook of a plan for people, below the lines of Progress.
#pragma once

#include <string>

#include "engine/run/run_event.hpp"

namespace sluice::cli {

// outlook: of train::outlook_json, with "next" and "explain" where they were asked for.
std::string outlook_text(const run::RunEvent& outlook);
// meshes: of train::meshes_json. One line for each mesh that was planned, the fastest first.
std::string meshes_text(const run::RunEvent& meshes);

}  // namespace sluice::cli
