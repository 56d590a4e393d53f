// Whether a configuration fits its budgets: the needs of the candidate groups (candidates.hpp).
//
// A group counts only if its most frugal candidate fits. A group's need is the larger of that
// candidate's coarse and exact one (trials.hpp), and does not depend on the budgets. So more memory
// never turns a plan into a refusal, and the least budget that fits is a minimum over the groups.
// Its floor is a bound of both that takes no trial.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/trial/refusal.hpp"
#include "engine/planner/trial/trials.hpp"

namespace sluice::planner {

class Feasibility {
 public:
  // All arguments but the groups must outlive it. Precondition: there is a group.
  Feasibility(const schedule::StepModel& model, const TierBytes& budgets, Trials& trials,
              std::vector<CandidateGroup> groups);

  // Whether any group fits.
  bool fits();
  // Precondition: fits() returned false.
  Refusal refusal();

  const std::vector<CandidateGroup>& groups() const { return groups_; }
  bool group_fits(std::size_t group);
  // The most frugal candidate of a group that fits. Precondition: fits() returned true.
  const schedule::StepOptions& frugal() const;
  // The need of a group that fits and adds the fewest bytes to `need`; nothing if some group needs
  // no more. Long steps count by their coarse needs. Precondition: fits() returned true.
  std::optional<TierBytes> nearest_need(const TierBytes& need);

 private:
  const TierBytes& coarse_need(std::size_t group);
  const TierBytes& need(std::size_t group);
  bool may_fit(std::size_t group);
  bool fits_amply(std::size_t group);
  bool long_step_fits(std::size_t group, const TierBytes& budgets);
  TierBytes nearest_coarse_need(const TierBytes& need);
  bool fits_with_room(std::size_t group);
  std::vector<std::size_t> roomiest() const;

  const schedule::StepModel& model_;
  const TierBytes& budgets_;
  Trials& trials_;
  std::vector<CandidateGroup> groups_;
  std::vector<TierBytes> floors_;
  std::vector<std::optional<TierBytes>> needs_;  // as far as they were asked for
  std::optional<std::size_t> fitting_;           // a group that fits
};

}  // namespace sluice::planner
