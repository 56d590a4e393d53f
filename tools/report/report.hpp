// `sluice report`: what a run directory (log.dir) says, as one page or as a Perfetto trace.
//
// A run directory holds
//   config.toml      the resolved configuration; [memory] gives the budgets
//   plan.json        the `plan` event
//   events.jsonl     every JSON event of the run, one a line
//   plan_trace.json  the simulator's trace of one steady step   } format of
//   trace.json       the executor's trace of the last traced steps } base/trace.hpp
// All five are untrusted: sizes, ids and ranges are checked. Both functions throw InputError,
// naming the file, when one is missing or malformed; they read only and keep nothing.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::report {

// One self-contained HTML page: no network, no other file.
std::string render_html_report(const std::filesystem::path& run_dir);

// Chrome JSON for ui.perfetto.dev and chrome://tracing: plan and run as two processes that both
// start at time 0, one thread per lane ("storage_read (2)" where instructions of a lane overlap, so
// that slices of a thread never do), counters as recorded.
std::string render_perfetto(const std::filesystem::path& run_dir);

}  // namespace sluice::report
