// The machines that come with the program, by name (share/hardware). A plan for one of them needs
// no measurement.
#pragma once

#include <string>
#include <vector>

#include "engine/planner/price/hardware_profile.hpp"

namespace sluice::planner {

// share/sluice/hardware next to the running program's bin directory; empty if that is unknown.
std::string bundled_profile_directory();
// Names of the profiles in a directory, sorted. Empty if it cannot be listed.
std::vector<std::string> profile_names(const std::string& directory);
// `name` is a file if it contains a slash or ends in ".json". Otherwise it is a profile of
// `directory`, or else a file. Throws InputError that lists the known names, or as load_profile does.
HardwareProfile load_named_profile(const std::string& name, const std::string& directory);

}  // namespace sluice::planner
