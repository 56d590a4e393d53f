#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "collectives/gloo/gloo_communicator.hpp"
#include "collectives/nccl/nccl_communicator.hpp"
#include "engine/run/resume_point.hpp"
#include "engine/run/run_directory.hpp"
#include "engine/train/training_run.hpp"
#include "engine/train/world.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/progress.hpp"
#include "tools/sluice/terminal.hpp"
#include "tools/sluice/waiting_notice.hpp"

namespace sluice::cli {
namespace {

// The signal that asked to stop; 0: none. A second one ends the process at once, but for SIGHUP: a
// terminal that closes may send that twice, from its shell and from the kernel.
std::atomic<int> stop_signal{0};
// Whether the run has files. Before, there is nothing to save, and a signal ends the process at
// once.
std::atomic<bool> has_files{false};

void on_signal(int signal) {
  if (!has_files) {
    constexpr std::string_view kText = "\nsluice: stopped before the run began; nothing was made\n";
    // On a terminal a notice may have begun a line.
    const std::string_view text = kText.substr(::isatty(STDERR_FILENO) != 0 ? 0 : 1);
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
    std::_Exit(128 + signal);
  }
  int none = 0;
  if (stop_signal.compare_exchange_strong(none, signal) || signal == SIGHUP) return;
  std::_Exit(128 + signal);
}

// Writing to a closed pipe or past a file size limit is an error of that write, not our end.
void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    if (sigaction(signal, nullptr, &before) != 0) throw Error("signal handlers cannot be read");
    // nohup: the run shall outlive its terminal.
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    if (sigaction(signal, &action, nullptr) != 0) throw Error("signal handlers cannot be set");
  }
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Any rank's signal stops all.
int signal_that_stopped(const train::World& world) {
  return world.alone() ? stop_signal.load() : world.stop_signal();
}

// Relative to the working directory where it lies below that.
std::string short_path(const std::string& path) {
  const auto below =
      std::filesystem::path(path).lexically_relative(std::filesystem::current_path());
  return below.empty() || *below.begin() == ".." ? path : below.string();
}

// One process of a run. `resumed` is the directory of the run to continue, or empty for a new run.
// Among ranks the first one speaks, and the others are silent unless they fail.
class TrainProcess {
 public:
  TrainProcess(const TrainArguments& arguments, const config::Config& config,
               const std::string& resumed, train::World& world)
      : arguments_(arguments),
        config_(config),
        world_(world),
        shown_(config),
        console_{arguments.json, arguments.quiet},
        progress_(shown_, console_) {
    if (world.is_first() && !arguments.quiet) waiting_.emplace(kPlanningText);
    options_.world = &world;
    options_.stop_at_step = arguments.steps;
    options_.resume = resumed;
    options_.accept_other_arithmetic = arguments.accept_arithmetic;
    options_.stop_signal = &stop_signal;
    options_.before_files = [] { has_files = true; };
    options_.launch = variable("SLUICE_LAUNCH");
  }

  train::TrainingEnd run() {
    const train::TrainingEnd end = train::train(
        config_, options_, [&](const train::RunEvent& event) { take(event); },
        [&](const train::StepReport& report) { progress_.step(report); });
    if (!world_.is_first()) return end;
    if (output_failed_) throw Error("events cannot be written to stdout; the run is saved");
    if (end == train::TrainingEnd::kRefused) {
      print_to_stderr("sluice: " + arguments_.config.path + ": " + refusal_ + "\n");
    }
    if (end == train::TrainingEnd::kInterrupted) {
      console_.notice("stopped     by signal " + std::to_string(signal_that_stopped(world_)) +
                      "; continue with: sluice train " + shown_.log.dir + "\n");
    }
    return end;
  }

 private:
  void take(const train::RunEvent& event) {
    waiting_.reset();
    if (arguments_.json && !output_failed_) {
      std::cout << json_text(event) << std::endl;
      if (!std::cout) {
        // Nobody reads any more: save and stop, as for a signal.
        output_failed_ = true;
        stop_signal.store(SIGPIPE);
      }
    }
    if (event["event"] == "plan") {
      shown_.log.dir = short_path(event["run_dir"]);
      progress_.plan(event);
      progress_.explain();
    } else if (event["event"] == "refused") {
      refusal_ = event["message"];
    } else {
      progress_.event(event);
    }
  }

  const TrainArguments& arguments_;
  const config::Config& config_;
  train::World& world_;
  config::Config shown_;  // log.dir is the run's directory once that is known
  const Console console_;
  Progress progress_;
  std::optional<WaitingNotice> waiting_;  // until the first event
  train::TrainingOptions options_;
  std::string refusal_;
  bool output_failed_ = false;
};

// Which run to go on with, and whether by its own configuration.
struct Resumed {
  std::string run;  // a run's directory or a log.dir; empty: a new run
  bool own_config = false;
};

// CONFIG may be a run, and a file after --resume is the CONFIG: `train --resume config.toml`.
Resumed resumed_run(TrainArguments& arguments) {
  std::string& config = arguments.config.path;
  std::error_code ignored;
  if (arguments.resumes && config.empty() &&
      std::filesystem::is_regular_file(arguments.resume, ignored)) {
    std::swap(config, arguments.resume);
  }
  if (std::filesystem::is_directory(config, ignored)) {
    if (!arguments.resume.empty()) {
      throw InputError("--resume: '" + arguments.resume + "' and '" + config +
                       "' are two runs to resume; name one");
    }
    return {config, true};
  }
  if (!config.empty() && !std::filesystem::exists(std::filesystem::status(config, ignored))) {
    throw InputError("train: '" + shown(config) +
                     "' does not exist; name a configuration file, or the directory of a run");
  }
  if (!arguments.resume.empty()) return {arguments.resume, config.empty()};
  if (config.empty()) {
    throw InputError(
        "train: name a configuration, or the directory of a run to resume; see "
        "sluice train --help");
  }
  if (!arguments.resumes) return {};
  return {config::load_config(config, arguments.config.overrides).log.dir, false};
}

// A run that goes on by its own configuration goes on in its own directory.
void refuse_another_place(const std::vector<std::string>& overrides) {
  for (const std::string& setting : overrides) {
    for (const std::string_view key : {"log.dir", "checkpoint.dir"}) {
      if (setting.substr(0, setting.find('=')) != key) continue;
      throw InputError("--set " + shown(setting) + ": a resumed run keeps its directory; leave " +
                       std::string(key) + " out, or name a configuration to start a new run");
    }
  }
}

train::WorldOptions world_options() {
  train::WorldOptions options;
  options.place = collectives::place_from_environment();
  options.make_group = [](const collectives::RendezvousPlace& place,
                          const collectives::MessageExchange& exchange) {
    collectives::GlooOptions gloo = collectives::gloo_options_at(place);
    gloo.exchange = exchange;
    return collectives::make_gloo_communicator(gloo);
  };
  options.gpu_group_obstacle = collectives::nccl_missing;
  options.make_gpu_group = collectives::make_nccl_communicator;
  return options;
}

// Until the ranks have met there is nothing to save, so a signal ends the process.
void meet_ranks(std::optional<train::World>& world, bool quiet) {
  const train::WorldOptions options = world_options();
  std::optional<WaitingNotice> waiting;
  if (options.place.size > 1 && !quiet) waiting.emplace("waiting for the other ranks");
  world.emplace(options);
  catch_stop_signals();
}

train::TrainingEnd train_in_world(const TrainArguments& given, train::World& world) {
  TrainArguments arguments = given;
  Resumed resumed;
  world.agree("the arguments", [&] { resumed = resumed_run(arguments); });
  const auto train_in = [&](const std::string& run) {
    config::Config config;
    world.agree("the configuration's file", [&] {
      if (resumed.own_config) {
        refuse_another_place(arguments.config.overrides);
        arguments.config.path = run + "/" + run::kConfigFile;
      }
      config = config::load_config(arguments.config.path, arguments.config.overrides);
    });
    return TrainProcess(arguments, config, run, world).run();
  };
  if (resumed.run.empty()) return train_in("");
  try {
    // A job that is started again goes on with its own run, never with an older one next to it.
    const bool restarts = !resumed.own_config && !variable("SLUICE_RESTART").empty();
    return train::resume_newest(resumed.run, train_in, &world,
                                restarts ? variable("SLUICE_LAUNCH") : "");
  } catch (const run::NoState&) {
    if (!arguments.or_new || resumed.own_config) throw;
    return train_in("");
  }
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  ignore_write_signals();
  std::optional<train::World> world;
  try {
    meet_ranks(world, arguments.quiet);
    const train::TrainingEnd end = train_in_world(arguments, *world);
    if (!arguments.json) forget_lost_output();
    if (end == train::TrainingEnd::kRefused) return 2;
    return end == train::TrainingEnd::kInterrupted ? 128 + signal_that_stopped(*world) : 0;
  } catch (const train::JobError& error) {
    if (error.is_already_reported()) return error.exit_status();
    throw;
  } catch (const run::NoState& error) {
    if (!world->is_first()) return error.exit_status();
    throw;
  }
}

}  // namespace sluice::cli
