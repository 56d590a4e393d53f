// The commands of the `sluice` program. Each returns an exit status (DESIGN section 9); errors are
// thrown and reported by main. stdout holds JSON events alone where --json is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;  // "key=value"
};

struct TrainArguments {
  ConfigArguments config;
  std::optional<std::int64_t> steps;
  bool resumes = false;
  std::string resume;  // a run's directory or a log.dir; empty: that of the configuration
  bool accept_arithmetic = false;
  bool json = false;
};
int train_command(const TrainArguments& arguments);

struct PlanArguments {
  ConfigArguments config;
  std::string hardware;  // a profile; empty: this machine's
  std::int64_t world = 1;
  std::string trace;            // where the simulated step's trace goes; empty: nowhere
  bool free_optimizer = false;  // say too what the step would take if its updates took no time
  bool json = false;
};
int plan_command(const PlanArguments& arguments);

struct DoctorArguments {
  std::string storage_path = ".";
  double seconds = 0.25;  // for each figure
  bool json = false;
  // Instead of measuring: stale files of killed runs in these directories (none named: ./runs).
  bool clean = false;
  std::vector<std::string> clean_directories;
  bool yes = false;  // and remove them
};
int doctor_command(const DoctorArguments& arguments);

struct BenchArguments {
  std::string name;
  std::string storage_path = ".";
  std::int64_t threads = 0;
  std::string backend = "auto";        // attention, copy, gemm
  std::optional<std::int64_t> elems;   // adam, step
  std::optional<std::int64_t> rounds;  // adam, attention, copy, gemm, step, storage
  std::vector<std::string> variants;   // adam, step
  std::optional<std::string> peers;    // adam, attention, gemm: a virtual environment, or none
  std::optional<std::string> bytes;    // storage: of the file; copy: of each array
  std::optional<double> seconds;       // allocator, storage: for each figure
  std::optional<std::string> block;    // storage: of each request
  std::optional<std::int64_t> depth;   // storage: requests in flight
  bool no_sweep = false;               // storage: fio at the same setting only
  bool json = false;
};
int bench_command(const BenchArguments& arguments);

struct ReportArguments {
  std::string run;
  std::string format = "html";
  std::string output;  // empty: RUN/report.html or RUN/trace.perfetto.json
};
int report_command(const ReportArguments& arguments);

struct ReplayArguments {
  std::string trace;     // a file
  std::string generate;  // or a family of the generator
  std::uint64_t seed = 0;
  std::uint32_t iterations = 6;
  std::optional<std::int32_t> device;   // of a PyTorch snapshot
  std::vector<std::string> policies;    // none: all
  std::optional<std::string> capacity;  // bytes: say who fits
  bool least = true;                    // find the least capacity of each
  std::string plot;                     // an SVG file
  std::string write;                    // the trace as our CSV
  std::string snapshot;                 // our allocator after it, as PyTorch's pickle
  bool json = false;
};
int replay_command(const ReplayArguments& arguments);

}  // namespace sluice::cli
