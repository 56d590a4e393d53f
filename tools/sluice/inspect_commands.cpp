// Commands that look: doctor, report.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/units.hpp"
#include "device/host/host_device.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "engine/run/run_directory.hpp"
#include "engine/run/stale_files.hpp"
#include "engine/train/plan/backend.hpp"
#include "kernels/kernels.hpp"
#include "tools/doctor/doctor.hpp"
#include "tools/replay/read_trace.hpp"
#include "tools/report/report.hpp"
#include "tools/sluice/arguments.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/loopback_group.hpp"
#include "tools/sluice/terminal.hpp"

namespace sluice::cli {

namespace {

// Seconds of --seconds that one measuring round of `sluice doctor` stands for. By default
// (0.25 s) there are seven rounds.
constexpr double kSecondsARound = 0.25 / 7;
constexpr double kMostRounds = 100;

void print_stale_files(const run::StaleRun& run, bool as_json) {
  if (!as_json && !run.damage.empty()) {
    std::cout << run.directory << ": left alone: " << run.damage << "\n";
  }
  if (!as_json && !run.in_use_by.empty()) {
    std::cout << run.directory << ": in use by " << run.in_use_by << "; left alone\n";
  }
  for (const run::StaleFile& file : run.files) {
    const bool removed = run.removed && file.removable;
    if (!as_json) {
      std::cout << (removed ? "removed  " : "left     ") << file.path << ": " << file.what << ", "
                << format_bytes(file.bytes) << '\n';
      continue;
    }
    const nlohmann::ordered_json event{{"event", "stale"},    {"run", run.directory},
                                       {"path", file.path},   {"what", file.what},
                                       {"bytes", file.bytes}, {"removable", file.removable},
                                       {"removed", removed}};
    std::cout << lenient_json_text(event) << '\n';
  }
}

int clean_command(const DoctorArguments& arguments) {
  std::vector<std::string> directories = arguments.clean_directories;
  // CLI11 gives one empty text where --clean has no value.
  std::erase(directories, "");
  if (directories.empty() && std::filesystem::is_directory("runs")) directories = {"runs"};
  std::uint64_t bytes = 0;
  std::uint64_t listed_bytes = 0;
  std::size_t removable = 0;
  std::size_t count = 0;
  for (const run::StaleRun& run : run::find_stale_files(directories, arguments.yes)) {
    print_stale_files(run, arguments.json);
    count += run.files.size();
    for (const run::StaleFile& file : run.files) {
      (file.removable ? bytes : listed_bytes) += file.bytes;
      if (file.removable) ++removable;
    }
  }
  if (arguments.json) return 0;
  if (count == 0) {
    std::cout << "no run left stale files\n";
    return 0;
  }
  const bool offers = removable > 0 && !arguments.yes;
  if (offers) std::cout << format_bytes(bytes) << " in all; --yes removes it\n";
  if (removable < count) {
    std::cout << format_bytes(listed_bytes) << (offers ? " more" : "")
              << " is only listed; --yes leaves it\n";
  }
  return 0;
}

}  // namespace

int doctor_command(const DoctorArguments& arguments) {
  if (arguments.clean) return clean_command(arguments);
  const std::unique_ptr<kernels::Kernels> all = kernels::make_host_kernels({});
  const std::unique_ptr<kernels::Kernels> one_core = kernels::make_host_kernels({.threads = 1});
  const std::unique_ptr<device::Device> device = device::make_host_device({});
  doctor::DoctorOptions options;
  options.measure.kernel.all = all.get();
  options.measure.kernel.one_core = one_core.get();
  options.measure.device = device.get();
  config::Config config;  // "auto": a GPU where there is one
  config.train.threads = 1;
  train::settle_backend(config);
  const train::Backend backend = train::make_backend(config);
  std::unique_ptr<device::Device> gpu;
  if (backend.device_memory_bytes) {
    doctor::GpuOptions& measured = options.measure.gpu;
    gpu = backend.make_device(std::min<std::uint64_t>(*backend.device_memory_bytes, 2 * kGiB));
    measured.device = gpu.get();
    measured.kernels = backend.device_kernels.get();
  }
  options.measure.links.make_group = make_loopback_group;
  options.measure.disk.directory = arguments.storage_path;
  options.measure.rounds = static_cast<int>(
      std::clamp(std::round(arguments.seconds / kSecondsARound), 1.0, kMostRounds));
  options.measure.begins = [](const std::string& part) {
    print_to_stderr("measure  " + part + "\n");
  };
  options.json = arguments.json;
  options.replaces_better = arguments.replace;
  options.profile_path = planner::default_profile_path();
  return doctor::run_doctor(options, std::cout);
}

int report_command(const ReportArguments& arguments) {
  std::error_code error;
  const bool is_trace = std::filesystem::is_regular_file(arguments.run, error);
  const std::string run = is_trace ? arguments.run : run::latest_run(arguments.run);
  if (is_trace && replay::is_trace_file(run)) {
    throw InputError("'" + shown(run) +
                     "' records an allocator's memory: `sluice replay FILE` explains it, and with "
                     "--capacity says what fits");
  }
  std::string text;
  std::string name;
  if (arguments.format == "html") {
    if (is_trace) {
      throw InputError("'" + shown(run) +
                       "' is a file, and a page shows a run's directory; for a run's trace.json "
                       "give --format perfetto, and for a snapshot of an allocator's memory use "
                       "`sluice replay FILE`");
    }
    text = report::render_html_report(run);
    name = "report.html";
  } else if (arguments.format == "perfetto") {
    text = report::render_perfetto(run);
    name = is_trace ? std::filesystem::path(run).stem().string() + ".perfetto.json"
                    : "trace.perfetto.json";
  } else {
    throw InputError("--format '" + arguments.format +
                     "' does not exist; there are: html, perfetto");
  }
  const std::filesystem::path folder =
      is_trace ? std::filesystem::path(run).parent_path() : std::filesystem::path(run);
  const std::string output = arguments.output.empty() ? (folder / name).string() : arguments.output;
  // The page holds the configuration: next to the run's other files it is private as they are.
  if (arguments.output.empty()) {
    write_private("report", output, text);
  } else {
    write_output("-o", output, text);
  }
  std::cout << output << '\n';
  return 0;
}

}  // namespace sluice::cli
