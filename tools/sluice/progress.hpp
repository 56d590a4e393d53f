// The progress of a training run for people, on stderr.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/plan.hpp"
#include "engine/train/training_run.hpp"

namespace sluice::cli {

// Time left, from the median time between the ends of recent steps: a checkpoint, an evaluation or
// a slow first step among them does not move it.
class TimeLeft {
 public:
  // `seconds`: since the step before ended.
  void add_step(double seconds);
  // Of `steps` more; 0 before the first step.
  double seconds_for(std::int64_t steps) const;

 private:
  static constexpr std::size_t kRecentSteps = 32;
  std::vector<double> recent_;  // a ring
  std::size_t next_ = 0;
};

class Progress {
 public:
  explicit Progress(const config::Config& config) : config_(config) {}
  // Constants of the run, once: device, model, memory, bytes that each step moves.
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

  const config::Config& config_;
  std::string device_;  // that runs
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
