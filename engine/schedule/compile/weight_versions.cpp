// Versions are values of their own. The home holds the weights that the step finds and, at its end,
// those that it leaves. An update in between writes its weights where nobody needs the old ones:
// into the home if the passes are done with the version there, else into a transient buffer of the
// same shape in the same tier, which dies with its last reader as any other value. Nothing is
// copied, so a stashed version costs memory and no traffic. There are never more places than
// versions that some pass still reads, and the new one.
//
// At a step's last update no pass is left, so the home is free, and the newest weights lie in it.
#include "engine/schedule/compile/weight_versions.hpp"

namespace sluice::schedule {

WeightVersions::WeightVersions(StepBuilder& builder,
                               const std::vector<std::vector<WeightUse>>& uses)
    : builder_(builder), version_at_home_(static_cast<std::size_t>(builder.unit_count()), 0) {
  for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
    places_.push_back({builder.home(StateKind::kWeight, unit)});
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    for (const WeightUse& weights : uses[i]) last_reads_[weights] = i;
  }
}

void WeightVersions::begin_update(std::int32_t unit) {
  const auto row = static_cast<std::size_t>(unit);
  const BufferId home = places_[row].front();
  if (home == kNoId) return;  // other ranks own all of the unit
  const auto read = last_reads_.find({unit, version_at_home_[row]});
  const bool home_is_free = read == last_reads_.end() || read->second < emitted_;
  const auto next = static_cast<std::int32_t>(places_[row].size());
  builder_.set_made_weights(unit, home_is_free ? home : builder_.add_like(home, next));
  if (home_is_free) version_at_home_[row] = next;
}

void WeightVersions::end_update(std::int32_t unit) {
  places_[static_cast<std::size_t>(unit)].push_back(builder_.made_home(StateKind::kWeight, unit));
  builder_.settle_made_weights(unit);
}

// A version has a number on all ranks, so it takes one here. Nothing asks for its place.
void WeightVersions::pass_over(std::int32_t unit) {
  places_[static_cast<std::size_t>(unit)].push_back(kNoId);
}

}  // namespace sluice::schedule
