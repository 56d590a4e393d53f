// Where each version of a unit's weights lies during a step with delayed updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// A unit's weights in one version; versions count from the one that the step finds.
struct WeightUse {
  std::int32_t unit = 0;
  std::int32_t version = 0;
  auto operator<=>(const WeightUse&) const = default;
};

class WeightVersions {
 public:
  // uses[i]: the weights that the i-th compute instruction reads.
  WeightVersions(StepBuilder& builder, const std::vector<std::vector<WeightUse>>& uses);
  // The buffer with this version, in the home's tier. Precondition: is_made(weights).
  BufferId place(WeightUse weights) const {
    return places_[static_cast<std::size_t>(weights.unit)]
                  [static_cast<std::size_t>(weights.version)];
  }
  bool is_made(WeightUse weights) const {
    return static_cast<std::size_t>(weights.version) <
           places_[static_cast<std::size_t>(weights.unit)].size();
  }
  // So many compute instructions have been emitted, or will be before the next update.
  void advance(std::size_t emitted) { emitted_ = emitted; }
  // Call around the update of a unit.
  // begin_update() chooses the place of the new version: the home, if nothing reads it any more,
  // else a buffer like it.
  void begin_update(std::int32_t unit);
  void end_update(std::int32_t unit);
  // In place of both on a rank that never has the new version.
  void pass_over(std::int32_t unit);

 private:
  StepBuilder& builder_;
  std::vector<std::vector<BufferId>> places_;    // by unit and version; the first is the home
  std::vector<std::int32_t> version_at_home_;    // by unit
  std::map<WeightUse, std::size_t> last_reads_;  // of passes
  std::size_t emitted_ = 0;
};

}  // namespace sluice::schedule
