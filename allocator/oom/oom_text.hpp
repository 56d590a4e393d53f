// A report of an out of memory, written down: for people, and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "allocator/caching/oom_report.hpp"
#include "allocator/oom/oom_fixes.hpp"

namespace sluice::allocator {

// At most about 40 lines, each ended; the largest sites, streams and fixes. Of the fixes only those
// that the simulation proved. fixes: null where none were looked for.
std::string oom_text(const OomReport& report, const OomFixes* fixes = nullptr);

// {"event":"out_of_memory", ...}: all of the report but its record, and every change that was tried
// with what came of it. Bytes as integers; a cap that is not set is null. Names are as recorded: to
// be dumped with error_handler_t::replace where they may not be UTF-8.
nlohmann::json oom_json(const OomReport& report, const OomFixes* fixes = nullptr);

}  // namespace sluice::allocator
