// Makes a plan faster by single changes, as long as one of them helps: another order, update,
// recomputation, prefetch or staging, and promotions (promote.hpp) that fill the room that is left.
#pragma once

#include <functional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/promote.hpp"
#include "engine/planner/shortlist.hpp"
#include "engine/planner/trials.hpp"

namespace sluice::planner {

class Improver {
 public:
  // All arguments must outlive it.
  Improver(const config::Config& config, const schedule::StepModel& model, Trials& trials,
           Shortlist& shortlist)
      : config_(config), model_(model), trials_(trials), shortlist_(shortlist) {}

  // Starts at a plan that fits. All plans that fit go on the shortlist.
  void improve(Shortlist::Found from);

 private:
  // Takes the change if it fits and is faster by enough.
  bool take(const schedule::StepOptions& options, Shortlist::Found& best);
  bool promote(const Promotion& promotion, Shortlist::Found& best);
  using Change = std::function<void(schedule::StepOptions&)>;
  std::vector<Change> changes(const schedule::StepOptions& from) const;

  const config::Config& config_;
  const schedule::StepModel& model_;
  Trials& trials_;
  Shortlist& shortlist_;
};

}  // namespace sluice::planner
