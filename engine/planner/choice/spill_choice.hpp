// Chooses the activations that leave the device between forward and backward: as few bytes as
// possible.
//
// An item is one saved part of a unit, or its output together with the output's gradient. A choice
// lists all items of the first unit, which waits longest, then of the next; the largest of a unit
// first. A plan spills the first n, for the least n that fits.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::planner {

// The tier of each saved part, by unit, as memory.place.saved and memory.place.activation give it.
// A part that neither names goes with the unit's activations. Throws InputError that names a part
// that no unit saves.
std::vector<std::vector<Tier>> saved_places(const config::Config& config,
                                            const schedule::StepModel& model,
                                            const std::vector<Tier>& activation);

class SpillChoice {
 public:
  // Starts from `options` with only those parts spilled that the configuration names. tier: the
  // destination of the items.
  SpillChoice(const config::Config& config, const schedule::StepModel& model,
              schedule::StepOptions options, Tier tier);
  std::size_t count() const { return items_.size(); }
  // With the first `count` items spilled.
  schedule::StepOptions with(std::size_t count) const;
  // With the fewest first items that hold at least this share of the bytes of all.
  schedule::StepOptions with_share(double share) const;

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

// Bytes that the rank's training schedule saves, by name of the part and tier where it waits, in the
// order of the units' regions. Bytes that stay on the device because they are needed again at once count there.
using SavedBytes = std::vector<std::pair<std::string, std::array<std::uint64_t, kTierCount>>>;
SavedBytes saved_bytes_by_part(const schedule::StepModel& model,
                               const schedule::StepOptions& options,
                               const schedule::Schedule& training);

}  // namespace sluice::planner
