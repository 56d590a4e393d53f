// Starts of the search whose activations leave the device. Both are costly, so they are made only for
// shapes and placements that do not fit otherwise.
#include "engine/planner/search.hpp"

namespace sluice::planner {

// The relaxation believes that activations have room which rounding and windows take. So a shape
// without a plan that fits is tried with all activations in pinned memory. In the order "unit", where
// those of all micro-batches wait at once, no single change leads there from another plan.
std::optional<Search::Start> Search::try_or_spill(const Shape& shape) {
  if (const auto plan = try_shape(shape)) return Start{shape, *plan};
  if (shape.places.activation != config::Config::Place::kAuto) return std::nullopt;
  std::vector<Shape> spilled;
  Places places = shape.places;
  places.activation = config::Config::Place::kPinned;
  add_with_places(shape, places, spilled);
  if (spilled.empty() || !found_.would_be_better(spilled.front().least.seconds))
    return std::nullopt;
  const auto plan = try_shape(spilled.front());
  if (!plan) return std::nullopt;
  return Start{spilled.front(), *plan};
}

// The fewest activations off the device that let a placement fit, by coarse trials. Nothing
// if none is enough.
std::optional<Shortlist::Found> Search::spill_least(const schedule::StepOptions& options) {
  if (config_.memory.place.activation != config::Config::Place::kAuto) return std::nullopt;
  for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
    const SpillChoice choice(config_, model_, options, tier);
    if (choice.count() == 0 || !found_.consider(choice.with(choice.count()))) continue;
    std::size_t too_few = 0;
    std::size_t enough = choice.count();
    while (enough - too_few > 1) {
      const std::size_t count = too_few + (enough - too_few) / 2;
      (found_.consider(choice.with(count)) ? enough : too_few) = count;
    }
    const schedule::StepOptions least = choice.with(enough);
    return Shortlist::Found{least, trials_.coarse(least).seconds};
  }
  return std::nullopt;
}

}  // namespace sluice::planner
