#include <csignal>
#include <cstdio>
#include <iostream>

#include "base/error.hpp"
#include "engine/train/training_run.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/progress.hpp"

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
  for (const int signal : {SIGINT, SIGTERM}) {
    if (sigaction(signal, &action, nullptr) != 0) {
      throw Error("signal handlers cannot be set");
    }
  }
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  Config config = load_config(arguments.config.path, arguments.config.overrides);
  if (!arguments.resume.empty()) use_run_directory(config, arguments.resume);
  catch_signals();
  TrainingOptions options;
  options.stop_at_step = arguments.steps;
  options.resume = arguments.resume;
  options.accept_other_arithmetic = arguments.accept_arithmetic;
  options.stop_signal = &stop_signal;
  Progress progress(config);
  std::string refusal;
  const TrainingEnd end = train(
      config, options,
      [&](const RunEvent& event) {
        if (arguments.json) std::cout << event.dump() << std::endl;
        if (event["event"] == "plan") {
          progress.plan(event);
        } else if (event["event"] == "refused") {
          refusal = event["message"];
        } else {
          progress.event(event);
        }
      },
      [&](const StepReport& report) { progress.step(report); });
  switch (end) {
    case TrainingEnd::kRefused:
      std::fprintf(stderr, "sluice: %s: %s\n", arguments.config.path.c_str(), refusal.c_str());
      return 2;
    case TrainingEnd::kInterrupted:
      return 128 + stop_signal.load();
    case TrainingEnd::kDone:
      break;
  }
  return 0;
}

}  // namespace sluice::cli
