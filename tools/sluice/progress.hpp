// A training run for people: its plan and its summary are answers, the steps between are notices.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/plan.hpp"
#include "engine/train/training_run.hpp"
#include "tools/sluice/terminal.hpp"
#include "tools/sluice/time_left.hpp"

namespace sluice::cli {

class Progress {
 public:
  Progress(const config::Config& config, const Console& console)
      : config_(config), console_(console) {}
  // Prints the constants of the run once: device, model, memory, and the bytes that a step moves.
  void plan(const train::RunEvent& plan);
  // Explains the figures of the step lines. Call before the first step.
  void explain() const;
  // One line: rewritten in place on a terminal, every log.every steps elsewhere.
  void step(const train::StepReport& report);
  void event(const train::RunEvent& event);

 private:
  using Clock = std::chrono::steady_clock;
  void end_line();
  void done(const train::RunEvent& event);
  std::vector<StatusField> step_fields(const train::StepReport& report) const;

  const config::Config& config_;
  const Console console_;
  std::optional<double> peak_flops_per_s_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_step_end_;
  TimeLeft time_left_;
  long long first_step_ = -1;
  double first_loss_ = 0;
  double last_loss_ = 0;
  bool line_open_ = false;
};

}  // namespace sluice::cli
