#include <csignal>
#include <cstdio>
#include <iostream>

#include "base/error.hpp"
#include "engine/train/training_run.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/progress.hpp"
#include "tools/sluice/waiting_notice.hpp"

namespace sluice::cli {
namespace {

// The signal that asked to stop; 0: none. A second one ends the process at once.
std::atomic<int> stop_signal{0};

void on_signal(int signal) {
  if (stop_signal.exchange(signal) != 0) std::_Exit(128 + signal);
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // Writing to a closed pipe or past a file size limit is an error of that write, not our end.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM}) {
    if (sigaction(signal, &action, nullptr) != 0) {
      throw Error("signal handlers cannot be set");
    }
  }
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  config::Config config = config::load_config(arguments.config.path, arguments.config.overrides);
  if (!arguments.resume.empty()) train::use_run_directory(config, arguments.resume);
  catch_signals();
  train::TrainingOptions options;
  options.stop_at_step = arguments.steps;
  options.resume = arguments.resume;
  options.accept_other_arithmetic = arguments.accept_arithmetic;
  options.stop_signal = &stop_signal;
  Progress progress(config);
  std::optional<WaitingNotice> waiting(kPlanningText);
  std::string refusal;
  bool output_failed = false;
  const train::TrainingEnd end = train::train(
      config, options,
      [&](const train::RunEvent& event) {
        waiting.reset();
        if (arguments.json && !output_failed) {
          std::cout << event.dump() << std::endl;
          if (!std::cout) {
            // Nobody reads any more: save and stop, as for a signal.
            output_failed = true;
            stop_signal.store(SIGPIPE);
          }
        }
        if (event["event"] == "plan") {
          progress.plan(event);
          progress.explain();
        } else if (event["event"] == "refused") {
          refusal = event["message"];
        } else {
          progress.event(event);
        }
      },
      [&](const train::StepReport& report) { progress.step(report); });
  if (output_failed) throw Error("events cannot be written to stdout; the run is saved");
  switch (end) {
    case train::TrainingEnd::kRefused:
      std::fprintf(stderr, "sluice: %s: %s\n", arguments.config.path.c_str(), refusal.c_str());
      return 2;
    case train::TrainingEnd::kInterrupted:
      std::fprintf(stderr, "stopped  by signal %d; continue with --resume %s\n", stop_signal.load(),
                   arguments.resume.empty() ? config.log.dir.c_str() : arguments.resume.c_str());
      return 128 + stop_signal.load();
    case train::TrainingEnd::kDone:
      break;
  }
  return 0;
}

}  // namespace sluice::cli
