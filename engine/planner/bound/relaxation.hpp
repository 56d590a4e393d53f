// The least time that a step can take, whatever a plan chooses, and the places that would reach it.
//
// Bytes, flops and memory alone decide here: state may be cut anywhere, nothing waits for anything
// else within a phase, and a tier can be filled to the last byte. So no plan is faster, and the
// places of the solution are a good start for one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// The choices of a plan that are not amounts of bytes.
struct PlanShape {
  schedule::ComputeOrder order = schedule::ComputeOrder::kMicrobatch;
  schedule::UpdatePlacement update = schedule::UpdatePlacement::kAfterBackward;
  schedule::Recomputation recompute;
  // Recomputation is no part of the shape: any share of the parts and outputs may be recomputed.
  bool recompute_is_free = false;
  // The price of work that other lanes hide, relative to time. It only chooses among places that
  // are nearly as fast. A schedule hides less than the relaxation believes.
  double hidden_price = 1e-3;
  // Where a rank's sums of groups of micro-batches wait (Placement::partial).
  Tier partial = Tier::kDevice;

  bool operator==(const PlanShape&) const = default;
};

// Shares of all bytes of a kind, by tier; each sums to one.
using TierShares = std::array<double, kTierCount>;
struct Relaxed {
  double seconds = 0;
  TierShares weight{};
  TierShares gradient{};
  TierShares optimizer{};
  TierShares saved{};    // values that forward saves, of a unit that does not recompute them
  TierShares outputs{};  // of units
  double cached = 0;     // the share of weights that windows keep on the device
};

class Relaxation {
 public:
  // All arguments must outlive it.
  Relaxation(const config::Config& config, const schedule::StepModel& model, CostModel& costs);

  // places: the tiers of kinds that are not free. extra: bytes of each tier that nothing here accounts for, such as windows and staging; zero for
  // the bound. Nothing: the state has no room.
  std::optional<Relaxed> solve(const PlanShape& shape, const config::Config::Places& places,
                               const TierBytes& budgets, const TierBytes& extra) const;

 private:
  class ShapeProgram;
  // Values that can be recomputed: their share of all bytes, and the time for them.
  struct Remade {
    double share = 0;
    double seconds = 0;  // of one micro-batch
  };
  void list_remade();

  const config::Config& config_;
  const schedule::StepModel& model_;
  CostModel& costs_;
  StepRates rates_;
  schedule::SimulationModel machine_;
  std::vector<Remade> remade_parts_;
  Remade remade_outputs_;
};

}  // namespace sluice::planner
