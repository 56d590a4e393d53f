// `sluice report`: shows the directory of a run as one page or as a Perfetto trace.
//
// A run directory holds
//   config.toml      the resolved configuration; [memory] gives the budgets
//   plan.json        the `plan` event
//   events.jsonl     every JSON event of the run, one a line
//   plan_trace.json  the simulator's trace of one steady step
//   trace.json       the executor's trace of the run's third step; missing if the run ended before
//   rank-R/          of a run of several ranks: events.jsonl of rank R; rank 0's is that of the run
// base/trace.hpp describes the format of traces. All files are untrusted: sizes, ids and ranges are
// checked. Both functions throw InputError, with the file's name, if one is malformed or if any but
// trace.json is missing. They change nothing. Events after a last line that a killed run left cut
// are not there; a warning in the log says so.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::report {

// One self-contained HTML page: no network, no other file.
std::string render_html_report(const std::filesystem::path& run_dir);

// Chrome JSON for ui.perfetto.dev and chrome://tracing. Plan and run are two processes that both
// start at time 0, with a thread for each lane and the counters as recorded. Instructions of a lane
// that overlap are put on further threads, such as "storage_read (2)", because slices of one thread
// may not overlap.
// path: a run directory; or a trace alone, such as a host program's (sluice_trace_write).
std::string render_perfetto(const std::filesystem::path& path);

}  // namespace sluice::report
