// The sluice command line (DESIGN section 9).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/log.hpp"
#include "engine/config/config.hpp"
#include "tools/sluice/commands.hpp"

namespace {

using sluice::cli::ConfigArguments;

void add_config(CLI::App& command, ConfigArguments& config) {
  command.add_option("CONFIG", config.path, "TOML configuration")->required();
  command.add_option("--set", config.overrides, "KEY=VALUE, any key, e.g. memory.device=64MiB");
}

// One sentence on stderr, and as an event where --json was given.
int report_error(const std::exception& error, int status, std::string_view code, bool json) {
  std::fprintf(stderr, "sluice: %s\n", error.what());
  if (json) {
    const nlohmann::ordered_json event{
        {"event", "error"}, {"code", std::string(code)}, {"message", error.what()}};
    std::cout << event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  sluice::set_log_sink([](sluice::LogLevel level, const std::string& message) {
    if (level != sluice::LogLevel::kDebug) std::fprintf(stderr, "sluice: %s\n", message.c_str());
  });
  CLI::App app{"Sluice trains models larger than GPU memory."};
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  app.require_subcommand(0, 1);
  bool help_config = false;
  app.add_flag("--help-config", help_config, "Print every configuration key and exit");

  sluice::cli::TrainArguments train;
  CLI::App* train_app = app.add_subcommand("train", "Train a model");
  add_config(*train_app, train.config);
  train_app->add_option("--steps", train.steps, "Stop after this many steps in all")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000000000}));
  train_app->add_option("--resume", train.resume,
                        "Continue the run in this directory (its log.dir)");
  train_app->add_flag("--accept-arithmetic", train.accept_arithmetic,
                      "Resume although the products of this machine round otherwise");
  train_app->add_flag("--json", train.json, "Events on stdout, one JSON object per line");

  sluice::cli::PlanArguments plan;
  CLI::App* plan_app = app.add_subcommand("plan", "Say what a run would need, or what would fit");
  add_config(*plan_app, plan.config);
  plan_app->add_option("--hardware", plan.hardware, "A hardware profile (written by doctor)");
  plan_app->add_option("--world", plan.world, "Number of ranks");
  plan_app->add_option("--trace", plan.trace, "Write the simulated step's trace here");
  plan_app->add_flag("--free-optimizer", plan.free_optimizer,
                     "Simulate the step with an optimizer that takes no time, too");
  plan_app->add_flag("--json", plan.json, "Events on stdout");

  sluice::cli::DoctorArguments doctor;
  CLI::App* doctor_app = app.add_subcommand("doctor", "Measure this machine; say what is missing");
  doctor_app->add_option("--storage", doctor.storage_path, "A directory on the disk to measure");
  doctor_app->add_option("--seconds", doctor.seconds, "About what each figure takes")
      ->check(CLI::Range(0.001, 60.0));
  doctor_app->add_flag("--json", doctor.json, "Events on stdout");
  CLI::Option* clean =
      doctor_app
          ->add_option("--clean", doctor.clean_directories,
                       "Instead: list what runs that were killed left in these run directories "
                       "(default ./runs): locks, storage files, unfinished checkpoints; and state "
                       "whose log is not there, which stays")
          ->expected(0, -1);
  doctor_app->add_flag("--yes", doctor.yes, "Take away what --clean lists, but for what stays")
      ->needs(clean);

  sluice::cli::BenchArguments bench;
  CLI::App* bench_app = app.add_subcommand("bench", "Measure a part beside its limit");
  bench_app
      ->add_option("NAME", bench.name, "adam, allocator, attention, copy, gemm, step or storage")
      ->required();
  bench_app->add_option("--storage", bench.storage_path, "A directory on the disk to measure");
  bench_app->add_option("--threads", bench.threads, "Threads; 0: all cores")
      ->check(CLI::Range(0, 4096));
  bench_app->add_option("--elems", bench.elems, "adam, step: parameters to update");
  bench_app->add_option(
      "--peers", bench.peers,
      "adam, attention, gemm: torch and DeepSpeed beside it: a virtual environment made by "
      "tools/bench/peers (default: the one in the cache, if there), or none");
  bench_app
      ->add_option("--rounds", bench.rounds,
                   "adam, attention, copy, gemm: rounds, at least 7; step: at least 5; storage: "
                   "rounds (21)")
      ->check(CLI::Range(0, 1000000));
  bench_app->add_option("--block", bench.block, "storage: bytes of a request, such as 512KiB");
  bench_app->add_option("--depth", bench.depth, "storage: requests in flight")
      ->check(CLI::Range(2, 4096));
  bench_app->add_flag("--no-sweep", bench.no_sweep,
                      "storage: beside fio at the same setting only, not at its best one, too");
  bench_app
      ->add_option("--variants", bench.variants,
                   "adam, step: names, parted by commas; all by default")
      ->delimiter(',');
  bench_app->add_option("--bytes", bench.bytes,
                        "storage: size of the file; copy: of each array; such as 1GiB");
  bench_app->add_option("--backend", bench.backend, "attention, copy, gemm: auto, host or cuda")
      ->check(CLI::IsMember({"auto", "host", "cuda"}));
  bench_app->add_option("--seconds", bench.seconds, "allocator, storage: about, for each figure");
  bench_app->add_flag("--json", bench.json, "Events on stdout");

  sluice::cli::ReportArguments report;
  CLI::App* report_app = app.add_subcommand("report", "Show a run: memory, lanes, plan beside run");
  report_app->add_option("RUN", report.run, "A run directory (log.dir)")->required();
  report_app->add_option("--format", report.format, "html or perfetto");
  report_app->add_option("-o", report.output, "The file to write");

  sluice::cli::ReplayArguments replay;
  CLI::App* replay_app = app.add_subcommand(
      "replay", "Replay recorded allocations through allocators: what each reserves, and why");
  replay_app->add_option("TRACE", replay.trace,
                         "A PyTorch memory snapshot, an RMM log, a CSV of ours, or lifetimes to "
                         "pack (id,lower,upper,size)");
  replay_app->add_option("--generate", replay.generate,
                         "Instead of a file: dense, zero3, recompute, pipeline, varlen, moe, lora "
                         "or rlhf");
  replay_app->add_option("--seed", replay.seed, "Of the generated trace")
      ->check(CLI::NonNegativeNumber)
      ->needs("--generate");
  replay_app->add_option("--iterations", replay.iterations, "Of the generated trace")
      ->needs("--generate");
  replay_app->add_option("--device", replay.device, "Which device of a snapshot")
      ->excludes("--generate");
  replay_app
      ->add_option("--policy", replay.policies,
                   "native, expandable, dynamic, planned; all if not given")
      ->delimiter(',');
  replay_app->add_option("--capacity", replay.capacity,
                         "What the device has, such as 16GiB: say who fits");
  replay_app->add_flag("!--no-least", replay.least, "Do not search each policy's least capacity");
  replay_app->add_option("--plot", replay.plot,
                         "Draw addresses over time as one SVG file, with a panel for each policy");
  replay_app->add_option("--write", replay.write, "Write the trace as CSV");
  replay_app->add_option(
      "--snapshot", replay.snapshot,
      "Write what our allocator (dynamic, or planned where not dynamic is asked for) recorded "
      "and holds after it, as a PyTorch memory snapshot (pytorch.org/memory_viz opens it)");
  replay_app->add_flag("--json", replay.json, "Events on stdout");

  // Before parsing: errors of parsing are events too.
  const bool json = std::any_of(
      argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ParseError& error) {
    return report_error(sluice::InputError(error.what() + std::string("; see sluice --help")), 2,
                        "bad_input", json);
  }

  try {
    if (help_config) {
      std::cout << sluice::config::config_help();
      return 0;
    }
    if (train_app->count("--resume") > 0 && train.resume.empty()) {
      throw sluice::InputError("--resume names no directory; give the run's log.dir");
    }
    doctor.clean = clean->count() > 0;
    const auto run = [&] {
      if (train_app->parsed()) return sluice::cli::train_command(train);
      if (plan_app->parsed()) return sluice::cli::plan_command(plan);
      if (doctor_app->parsed()) return sluice::cli::doctor_command(doctor);
      if (bench_app->parsed()) return sluice::cli::bench_command(bench);
      if (report_app->parsed()) return sluice::cli::report_command(report);
      if (replay_app->parsed()) return sluice::cli::replay_command(replay);
      std::cout << app.help();
      return 2;
    };
    const int status = run();
    if (!std::cout.flush()) throw sluice::Error("the output cannot be written to stdout");
    return status;
  } catch (const sluice::Error& error) {
    return report_error(error, error.exit_status(), error.code(), json);
  } catch (const std::exception& error) {
    return report_error(error, 3, "fault", json);
  }
}
