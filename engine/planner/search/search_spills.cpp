// Starts of the search where the device is short: gradients or activations leave it, or less is
// fetched ahead. They are costly, so they are made only for shapes and placements that do not fit
// otherwise.
#include <algorithm>

#include "engine/planner/search/search.hpp"

namespace sluice::planner {

// A shape without a plan that fits is tried with gradients in pinned memory, with activations there,
// and with both. The relaxation likes to fill the device with gradients, and leaves too little to
// windows. Adds all plans that fit.
void Search::try_or_spill(const Shape& shape, std::vector<Start>& starts) {
  if (const auto plan = try_shape(shape)) return starts.push_back({shape, *plan});
  using Place = config::Config::Place;
  const Places& given = shape.places;
  const std::size_t before = starts.size();
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
  // Costly, so only as long as nothing fits.
  if (starts.size() > before || !found_.empty()) return;
  for (const schedule::StepOptions& options :
       {placed(shape, shape.least, {}), frugal_options(shape)}) {
    if (const auto plan = spill_least(options)) return starts.push_back({shape, *plan});
  }
}

// Windows for two units ahead may leave no room to a mixture. No single change leads to it from the
// plans that fit, so it is tried with one unit ahead, and the best of each order and update goes
// on.
void Search::try_one_ahead(const std::vector<Shape>& shapes, const std::vector<Start>& starts) {
  if (config_.memory.prefetch < 2) return;
  const Places& open = config_.memory.place;
  std::vector<Start> near;
  for (Shape shape : shapes) {
    const bool has_plan = std::any_of(starts.begin(), starts.end(), [&](const Start& start) {
      const Places& places = start.shape.places;
      return start.shape.shape == shape.shape && places.activation == open.activation &&
             places.gradient == open.gradient;
    });
    if (has_plan || !shape.shape.recompute_is_free) continue;
    if (!found_.would_be_better(shape.least.seconds)) continue;
    shape.thrift = Thrift::kOneAhead;
    if (const auto plan = try_shape(shape)) near.push_back({shape, *plan});
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const Start& a, const Start& b) { return a.plan.seconds < b.plan.seconds; });
  std::vector<std::pair<schedule::ComputeOrder, schedule::UpdatePlacement>> passes;
  for (const Start& start : near) {
    const std::pair own(start.shape.shape.order, start.shape.shape.update);
    if (std::find(passes.begin(), passes.end(), own) != passes.end()) continue;
    passes.push_back(own);
    if (start.plan.seconds < found_.front().seconds * kNearStart) {
      improver_.improve(narrow(start).plan);
    }
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
