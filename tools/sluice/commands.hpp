// The commands of the `sluice` program. Each returns an exit status; errors are thrown and reported
// by main. With --json, stdout holds JSON events and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): of CLI11
class App;
}

namespace sluice::cli {

// A command with its arguments, ready to run; returns the exit status.
using Command = std::function<int()>;

struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;  // "key=value"
};

struct TrainArguments {
  ConfigArguments config;
  std::optional<std::int64_t> steps;
  bool resumes = false;
  std::string resume;   // a run's directory or a log.dir; empty: that of the configuration
  bool or_new = false;  // start a new run if there is no state to resume
  bool accept_arithmetic = false;
  bool json = false;
  bool quiet = false;  // no progress and no notices
};
int train_command(const TrainArguments& arguments);

struct LaunchArguments {
  std::int64_t ranks = 1;
  std::int64_t restarts = 0;  // after faults
  double grace_seconds = 15;  // for the other ranks once one has failed
  bool pins = true;           // each rank to cores of its own
  bool quiet = false;         // no notices of the launcher
  std::vector<std::string> command;
};
int launch_command(const LaunchArguments& arguments);

struct PlanArguments {
  ConfigArguments config;
  std::string hardware;         // a profile, by name or path; empty: this machine's
  std::int64_t world = 0;       // ranks; 0: as the configuration says
  std::string mesh;             // "auto": the best mesh of the world; empty: the configuration's
  std::string trace;            // file for the simulated step's trace; empty: none
  bool free_optimizer = false;  // also give the step's time if its updates took no time
  bool next = false;            // also plan single changes and give what each gains
  bool explain = false;         // also tell about the search
  bool json = false;
  bool quiet = false;  // no notices
};
int plan_command(const PlanArguments& arguments);

struct DataArguments {
  ConfigArguments config;
  bool order = false;
  std::string steps;  // "7" or "1..100"; empty: all steps of the run
  bool json = false;
};
int data_command(const DataArguments& arguments);

struct VerifyArguments {
  ConfigArguments config;
  std::int64_t steps = 3;
  bool json = false;
  bool quiet = false;  // no notices
};
int verify_command(const VerifyArguments& arguments);

struct DoctorArguments {
  std::string storage_path = ".";
  double seconds = 0.25;  // for each figure
  bool json = false;
  bool replace = false;  // also a saved profile with better rates
  // Instead of measuring: lists the stale files of dead runs in these directories (none named:
  // ./runs).
  bool clean = false;
  std::vector<std::string> clean_directories;
  bool yes = false;  // and removes them
};
int doctor_command(const DoctorArguments& arguments);

// `sluice bench` with a subcommand, options and defaults for each bench. Parsing sets `chosen` to
// the bench that is named; it must outlive the parsing.
void add_bench(CLI::App& app, Command& chosen);

struct ReportArguments {
  std::string run;
  std::string format = "html";
  std::string output;  // empty: RUN/report.html, RUN/trace.perfetto.json or TRACE.perfetto.json
};
int report_command(const ReportArguments& arguments);

struct ReplayArguments {
  std::string trace;     // a file
  std::string generate;  // or a family of the generator
  std::uint64_t seed = 0;
  std::uint32_t iterations = 6;
  std::optional<std::int32_t> device;   // of a PyTorch snapshot
  std::vector<std::string> policies;    // none: all
  std::optional<std::string> capacity;  // bytes: say which policies fit
  bool least = true;                    // find the least capacity of each
  std::string plot;                     // an SVG file
  std::string write;                    // the trace as our CSV
  std::string snapshot;                 // our allocator after it, as PyTorch's pickle
  bool json = false;
};
int replay_command(const ReplayArguments& arguments);

}  // namespace sluice::cli
