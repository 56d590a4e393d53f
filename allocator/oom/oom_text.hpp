// Writes the report of an out of memory, as text for people and as JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "allocator/caching/oom_report.hpp"
#include "allocator/oom/oom_fixes.hpp"

namespace sluice::allocator {

// At most about 40 lines, each with its newline: the largest sites, streams and fixes. Only fixes
// that the simulation verified are listed. `fixes` is null if no search was made.
std::string oom_text(const OomReport& report, const OomFixes* fixes = nullptr);

// {"event":"out_of_memory", ...}: the whole report except its record, and every change that was
// tried with its outcome. Bytes are integers; a cap that is not set is null. Names are as recorded,
// so dump with error_handler_t::replace where they may not be UTF-8.
nlohmann::json oom_json(const OomReport& report, const OomFixes* fixes = nullptr);

}  // namespace sluice::allocator
