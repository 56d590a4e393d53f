// The plans that a search has found to fit by coarse trials, the fastest first, and the choice among
// them by exact ones.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/planner/trial/trials.hpp"

namespace sluice::planner {

class Shortlist {
 public:
  struct Found {
    schedule::StepOptions options;
    double seconds = 0;  // of a coarse trial
  };

  // All arguments must outlive it.
  Shortlist(const config::Config& config, const schedule::StepModel& model,
            const TierBytes& budgets, Trials& trials);

  // Keeps the plan if it fits. Returns its time; nothing if it does not fit.
  std::optional<double> consider(const schedule::StepOptions& options);
  // Whether a plan that takes so long would be faster than the best so far by enough to be taken.
  bool would_be_better(double seconds) const;

  bool empty() const { return found_.empty(); }
  const Found& front() const { return found_.front(); }
  // The budgets, less the bytes that exact trials needed beyond their coarse ones.
  const TierBytes& room() const { return room_; }

  // The fastest plans that differ in more than a detail, at most three; one if steps are long.
  std::vector<Found> finalists() const;
  // The plan whose passes compute least of those that are nearly as fast as the fastest. Nothing: it
  // hardly computes less than the fastest does.
  std::optional<Found> least_compute() const;
  // The fastest of the finalists, compiled and simulated exactly, with the best pieces for its
  // update. Nothing: the fastest plan found does not fit; the room has shrunk below its need, and
  // plans that do not fit the room are gone.
  std::optional<Compiled> confirm();
  // One plan, placed exactly, its training step simulated. Nothing: it does not fit, and the
  // room has shrunk.
  std::optional<Compiled> compile(const Found& found);

 private:
  schedule::StepOptions refined(schedule::StepOptions options);
  void shrink_room(const schedule::StepOptions& options, const TierBytes& need);

  const schedule::StepModel& model_;
  const TierBytes& budgets_;
  TierBytes room_;
  Trials& trials_;
  bool is_by_hand_;  // places, recomputation, order and update are set
  std::vector<Found> found_;
};

}  // namespace sluice::planner
