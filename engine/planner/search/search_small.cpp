// Where steps are small, trials are cheap and more of them are made. A small model has few and large
// units, so shares of tiers that are rounded to units leave much of a tier empty, and single changes
// do not lead from one good plan to the next.
#include <algorithm>
#include <array>

#include "engine/planner/choice/step_size.hpp"
#include "engine/planner/search/search.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

constexpr std::array<Place, 3> kPlaces{Place::kDevice, Place::kPinned, Place::kStorage};

}  // namespace

// From a plan with windows next to the arena, no single change leads to a device that holds all.
void Search::try_thrifty(Shape shape, std::vector<Start>& starts) {
  if (step_size(model_, base_options(shape)) > kSmallStepInstructions) return;
  for (const Thrift thrift : {Thrift::kNothingAhead, Thrift::kSharedDevice}) {
    shape.thrift = thrift;
    if (const auto plan = try_shape(shape)) starts.push_back({shape, *plan});
  }
}

// The shape with each kind of state on one tier.
void Search::add_whole_places(const Shape& shape, std::vector<Shape>& list) const {
  const Places& fixed = config_.memory.place;
  const auto may = [](Place wanted, Place place) {
    return wanted == Place::kAuto || wanted == place;
  };
  for (const Place weight : kPlaces) {
    for (const Place gradient : kPlaces) {
      for (const Place optimizer : kPlaces) {
        const bool there = weight == Place::kDevice && gradient == Place::kDevice;
        if (optimizer == Place::kDevice && !there) continue;
        if (!may(fixed.weight, weight) || !may(fixed.gradient, gradient)) continue;
        if (!may(fixed.optimizer, optimizer)) continue;
        Places places = fixed;
        places.weight = weight;
        places.gradient = gradient;
        places.optimizer = optimizer;
        add_with_places(shape, places, list);
      }
    }
  }
}

// With as little thrift as fits. Activations are tried in pinned memory, too, if nothing else fits or
// those of all micro-batches wait at once.
std::optional<Shortlist::Found> Search::try_with_thrift(const Shape& shape) {
  std::vector<Shape> variants{shape};
  if (shape.places.activation == Place::kAuto) {
    Places places = shape.places;
    places.activation = Place::kPinned;
    add_with_places(shape, places, variants);
  }
  std::optional<Shortlist::Found> best;
  for (Shape& variant : variants) {
    if (best && shape.shape.order == schedule::ComputeOrder::kMicrobatch) break;
    for (const Thrift thrift : {Thrift::kNone, Thrift::kNothingAhead, Thrift::kSharedDevice}) {
      variant.thrift = thrift;
      const auto plan = try_shape(variant);
      if (plan && (!best || plan->seconds < best->seconds)) best = plan;
      if (plan) break;
    }
  }
  return best;
}

// Each shape with passes or a recomputation of its own counts once.
void Search::try_whole_places(const std::vector<const Shape*>& shapes) {
  std::vector<Shape> list;
  std::vector<const PlanShape*> seen;
  for (const Shape* shape : shapes) {
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const PlanShape* other) { return *other == shape->shape; });
    if (known) continue;
    seen.push_back(&shape->shape);
    add_whole_places(*shape, list);
  }
  sort_by_bound(list);
  std::optional<Shortlist::Found> best;
  const std::uint64_t most = trials_.instructions() + kSearchInstructions;
  for (const Shape& shape : list) {
    if (!found_.would_be_better(shape.least.seconds) || trials_.instructions() > most) break;
    const std::optional<Shortlist::Found> plan = try_with_thrift(shape);
    if (plan && (!best || plan->seconds < best->seconds)) best = plan;
  }
  if (best) improver_.improve(*best);
}

// First those that some plan has: where memory is tight, they are few. Where the policy is left open,
// the others are tried by the searches with each policy by name (policy_search.hpp).
void Search::try_whole_places(const std::vector<Shape>& shapes, const std::vector<Start>& starts) {
  std::vector<const Shape*> with_plan;
  std::vector<const Shape*> others;
  for (const Start& start : starts) with_plan.push_back(&start.shape);
  try_whole_places(with_plan);
  if (activations_.is_free()) return;
  for (const Shape& shape : shapes) {
    const bool has_plan = std::any_of(starts.begin(), starts.end(), [&](const Start& start) {
      return start.shape.shape == shape.shape;
    });
    if (!has_plan) others.push_back(&shape);
  }
  try_whole_places(others);
}

}  // namespace sluice::planner
