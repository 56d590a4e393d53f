// Which of the things that wait between forward and backward leave the device: as few bytes as it
// takes.
//
// An item is a part of what a unit saves, or its output (whose gradient goes along). A choice has
// them in an order of preference; a plan spills the first n of them, for the least n that fits.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::planner {

// Where memory.place.saved and memory.place.activation put each part, by unit; what neither names
// goes where the unit's activations do. Throws InputError naming a part that no unit saves.
std::vector<std::vector<Tier>> saved_places(const config::Config& config,
                                            const schedule::StepModel& model,
                                            const std::vector<Tier>& activation);

class SpillChoice {
 public:
  enum class First : std::uint8_t {
    kUnits,  // all of the first unit, which waits longest, then of the next
    kParts,  // the largest part of all units, then the next: what is moved spreads over the step
  };
  // Of `options` with nothing spilled but what the configuration says. tier: of what is.
  SpillChoice(const config::Config& config, const schedule::StepModel& model,
              schedule::StepOptions options, First first, Tier tier);
  std::size_t count() const { return items_.size(); }
  // With the first `count` items spilled.
  schedule::StepOptions with(std::size_t count) const;

 private:
  struct Item {
    std::size_t unit = 0;
    std::size_t part = 0;  // kOutput: the unit's output
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t kOutput = SIZE_MAX;

  schedule::StepOptions options_;
  std::vector<Item> items_;
  Tier tier_;
};

// Bytes that a step saves, by name of the part and tier where it waits; in the order of the units'
// regions. What stays on the device because it is needed again at once counts there.
using SavedBytes = std::vector<std::pair<std::string, std::array<std::uint64_t, kTierCount>>>;
SavedBytes saved_bytes_by_part(const schedule::StepModel& model,
                               const schedule::StepOptions& options,
                               const schedule::Schedule& training);

}  // namespace sluice::planner
