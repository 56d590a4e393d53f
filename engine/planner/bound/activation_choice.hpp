// Divides the bytes that a plan leaves to activations: each value is kept, recomputed, or waits in
// another tier.
//
// By parts: each unit keeps its saved parts and its output on the device, sends them to pinned
// memory or storage, or recomputes some of the parts. Equal units are one class of a knapsack
// (recompute_knapsack.hpp), which adds up the work of compute lane, links and storage.
//
// By segments: where the inputs of all units do not fit, outputs are recomputed, too. The runs of
// each unit come from a chain (chain_recompute.hpp). Everything stays on the device then.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/bound/recompute_knapsack.hpp"
#include "engine/planner/bound/step_work.hpp"
#include "engine/planner/choice/chain_recompute.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

class ActivationChoice {
 public:
  // All arguments must outlive it.
  ActivationChoice(const config::Config& config, const schedule::StepModel& model,
                   CostModel& costs);

  // Whether the configuration leaves the choice: recompute.policy is "auto" and no part has a place
  // of its own.
  bool is_free() const;

  enum class Spills { kNever, kMay };
  // `from` with other activations. room: the bytes of each tier that values may take while they
  // wait. spills: whether values may leave the device where the configuration leaves the choice.
  // Nothing if no choice fits.
  std::optional<schedule::StepOptions> by_parts(const schedule::StepOptions& from,
                                                const TierBytes& room, Spills spills) const;
  // device_bytes: of all activations and workspace at any time. Nothing if no choice fits, or if
  // some unit between embedding and head cannot be recomputed.
  std::optional<schedule::StepOptions> by_segments(const schedule::StepOptions& from,
                                                   std::uint64_t device_bytes) const;
  // The bytes that activations and workspace take at most if all of them stay on the device and
  // each unit that recomputes something recomputes all of it.
  std::uint64_t segment_bytes(const schedule::StepOptions& of) const;

 private:
  // One way of treating a unit's activations.
  struct Way {
    schedule::PartMask remade = 0;
    double remake_s = 0;         // of one micro-batch
    Tier parts = Tier::kDevice;  // the waiting place of those that are not recomputed
    Tier output = Tier::kDevice;
    bool leaves() const { return parts != Tier::kDevice || output != Tier::kDevice; }
  };
  struct UnitClass {
    std::vector<std::size_t> units;
    std::vector<Way> ways;
  };

  std::vector<Way> ways_of(const RemakeClass& of) const;
  StepWork<double> fixed_work(const schedule::StepOptions& from) const;
  Knapsack::Option option(const schedule::StepOptions& from, std::size_t unit,
                          const Way& way) const;
  std::vector<double> resource_seconds(const StepWork<double>& work) const;
  static std::vector<std::size_t> dealt(const UnitClass& of,
                                        const std::vector<std::int64_t>& counts);
  std::vector<ChainUnit> chain(const schedule::StepOptions& from) const;

  const config::Config& config_;
  const schedule::StepModel& model_;
  CostModel& costs_;
  StepRates rates_;
  schedule::SimulationModel machine_;
  std::vector<UnitClass> classes_;
};

}  // namespace sluice::planner
