// The progress of a training run for people, on stderr.
#pragma once

#include <chrono>

#include "engine/planner/plan.hpp"
#include "engine/train/training_run.hpp"

namespace sluice::cli {

class Progress {
 public:
  explicit Progress(const config::Config& config) : config_(config) {}
  void plan(const train::RunEvent& plan) const;
  // One line: rewritten in place on a terminal, every log.every steps elsewhere.
  void step(const train::StepReport& report);
  void event(const train::RunEvent& event);

 private:
  void end_line();
  const config::Config& config_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  long long first_step_ = -1;
  double first_loss_ = 0;
  double last_loss_ = 0;
  double tokens_per_s_ = 0;
  bool line_open_ = false;
};

}  // namespace sluice::cli
