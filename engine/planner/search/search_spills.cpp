// Starts of the search where the device is short: gradients or activations leave it, or less is
// fetched ahead. They are costly, so they are made only for shapes and placements that do not fit
// otherwise.
#include <algorithm>

#include "engine/planner/search/search.hpp"

namespace sluice::planner {

// A shape without a plan that fits is tried with less fetched ahead, and with values that leave the
// device; with both only where nothing fits yet. Adds all plans that fit.
void Search::try_or_spill(const Shape& shape, std::vector<Start>& starts) {
  const std::size_t before = starts.size();
  for (const Thrift thrift : thrifts()) {
    Shape thrifty = shape;
    thrifty.thrift = thrift;
    const auto plan = try_shape(thrifty);
    if (!plan) continue;
    starts.push_back({thrifty, *plan});
    if (thrift == Thrift::kNone) return;
    break;
  }
  for (const Thrift thrift : thrifts()) {
    Shape thrifty = shape;
    thrifty.thrift = thrift;
    try_spills(thrifty, starts);
    if (starts.size() > before) return;
  }
  // Costly, so only as long as nothing fits.
  if (!found_.empty()) return;
  for (const schedule::StepOptions& options :
       {placed(shape, shape.least, {}), frugal_options(shape)}) {
    if (const auto plan = spill_least(options)) return starts.push_back({shape, *plan});
  }
}

// With gradients in pinned memory, with activations there, and with both. The relaxation likes to fill
// the device with gradients, and leaves too little to windows.
void Search::try_spills(const Shape& shape, std::vector<Start>& starts) {
  using Place = config::Config::Place;
  const Places& given = shape.places;
  for (const auto& [gradient, activation] :
       {std::pair{given.gradient, Place::kPinned}, std::pair{Place::kPinned, given.activation},
        std::pair{Place::kPinned, Place::kPinned}}) {
    Places places = given;
    if (given.gradient == Place::kAuto) places.gradient = gradient;
    if (given.activation == Place::kAuto) places.activation = activation;
    if (places.gradient == given.gradient && places.activation == given.activation) continue;
    std::vector<Shape> other;
    add_with_places(shape, places, other);
    if (other.empty() || !found_.would_be_better(other.front().least.seconds)) continue;
    if (const auto plan = try_shape(other.front())) starts.push_back({other.front(), *plan});
  }
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
