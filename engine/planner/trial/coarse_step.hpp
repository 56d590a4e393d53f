// A training step that takes as long as a given one and has far fewer instructions: fewer
// micro-batches, and larger pieces of state.
//
// A large piece stands for several small ones in a row. It costs what they cost, and its staging takes
// the memory of one of them. Rings keep their depth, so that as many pieces are in flight.
//
// All units are there. Siblings with fewer units were tried: with four of each kind they are no faster
// and less exact (docs/decisions/131).
#pragma once

#include <cstdint>

#include "engine/planner/price/cost_model.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::planner {

class CoarseStep {
 public:
  // rounds: micro-batches of each rank. pieces: of the largest unit's state, if it has more.
  // Both models and the options must outlive it.
  CoarseStep(const schedule::StepModel& model, const schedule::StepOptions& options,
             std::int32_t rounds, std::uint64_t pieces);

  // Nothing was left out or made larger: it is the step itself.
  bool is_exact() const;
  // Generated, and neither linked nor packed.
  schedule::Schedule generate() const;
  // Staging of the given step's size. Call after link() and before the places are packed.
  void shrink_staging(schedule::Schedule& coarse) const;
  // Sets cost_s of every instruction.
  void price(schedule::Schedule& coarse, CostModel& costs) const;
  // Lets the rounds between the first and the last stand for those that were left out, by longer
  // instructions. In the order "unit" the work of all micro-batches on a unit overlaps one transfer of
  // its state. The longer of the two decides, so fewer micro-batches would tell nothing of all.
  void lengthen_rounds(schedule::Schedule& coarse) const;
  std::int32_t missing_rounds() const { return missing_; }

 private:
  // The pieces of one use of state or of a spilled value for which it stands; 1: itself.
  double pieces_of(const schedule::Buffer& buffer, const schedule::Use& use, bool updates) const;

  const schedule::StepModel& model_;
  const schedule::StepOptions& options_;
  schedule::StepOptions coarse_;
  std::int32_t rounds_;
  std::int32_t missing_;
};

// The rounds of a coarse step: a first, a last, and `between` that stand for all others. Groups with
// sums of their own are compiled in full, since the sums that wait at once depend on their number.
std::int32_t coarse_rounds(const schedule::StepModel& model, const schedule::StepOptions& options,
                           std::int32_t between);

}  // namespace sluice::planner
