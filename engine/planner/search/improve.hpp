// Makes a plan faster by single changes, as long as one of them helps: another order, update,
// recomputation, prefetch or staging, promotions (promote.hpp) that fill the room that is left, and
// other activations for that room (activation_choice.hpp).
#pragma once

#include <functional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/bound/activation_choice.hpp"
#include "engine/planner/bound/relaxation.hpp"
#include "engine/planner/search/promote.hpp"
#include "engine/planner/search/shortlist.hpp"
#include "engine/planner/trial/trials.hpp"

namespace sluice::planner {

class Improver {
 public:
  // All arguments must outlive it.
  Improver(const config::Config& config, const schedule::StepModel& model, Trials& trials,
           Shortlist& shortlist, const Relaxation& relaxation, const ActivationChoice& activations)
      : config_(config),
        model_(model),
        trials_(trials),
        shortlist_(shortlist),
        relaxation_(relaxation),
        activations_(activations) {}

  // Starts at a plan that fits. All plans that fit go on the shortlist.
  void improve(Shortlist::Found from);

  // `options` with the mixture of least time for the bytes that homes and `extra` leave; the most
  // frugal recomputation if none fits.
  schedule::StepOptions mixed(const schedule::StepOptions& options, const TierBytes& extra) const;

 private:
  // Takes the change if it fits and is faster by enough.
  bool take(const schedule::StepOptions& options, Shortlist::Found& best);
  bool promote(const Promotion& promotion, Shortlist::Found& best);
  bool mix_recomputation(Shortlist::Found& best);
  bool cut_segments(Shortlist::Found& best);
  // Nothing if no segments fit.
  std::optional<schedule::StepOptions> segments_within(const schedule::StepOptions& from,
                                                       std::uint64_t device_bytes) const;
  using Change = std::function<void(schedule::StepOptions&)>;
  std::vector<Change> changes(const schedule::StepOptions& from) const;

  const config::Config& config_;
  const schedule::StepModel& model_;
  Trials& trials_;
  Shortlist& shortlist_;
  const Relaxation& relaxation_;
  const ActivationChoice& activations_;
};

}  // namespace sluice::planner
