// The last word of a search: its choice against the plan of each shape that it tried. Finalists are
// chosen by coarse times, which may hide a faster plan. So may the rule that of plans that hardly
// differ only one is compiled.
#include <algorithm>
#include <utility>

#include "engine/planner/search/search.hpp"

namespace sluice::planner {

// Coarse times are off, so a shape whose plan seemed faster than the choice is compiled exactly. Then
// tried_ has its exact time; or none, if it does not fit after all.
Compiled Search::fastest_of_tried(Compiled best) {
  std::vector<Tried*> faster;
  for (Tried& tried : tried_) {
    if (tried.best_s) faster.push_back(&tried);
  }
  std::stable_sort(faster.begin(), faster.end(), [](const Tried* one, const Tried* other) {
    return *one->best_s < *other->best_s;
  });
  for (Tried* tried : faster) {
    if (*tried->best_s >= best.simulation.total_s) break;
    std::optional<Compiled> other = found_.compile({tried->best, *tried->best_s});
    tried->best_s.reset();
    if (!other) continue;
    tried->best_s = other->simulation.total_s;
    if (*tried->best_s < best.simulation.total_s) best = settled(std::move(*other));
  }
  return best;
}

}  // namespace sluice::planner
