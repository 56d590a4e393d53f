// Decides when each unit's weights are fetched to the device and when they leave it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"
#include "engine/schedule/compile/weight_versions.hpp"

namespace sluice::schedule {

class WeightStream {
 public:
  // uses[i]: the weights that the i-th compute instruction reads. before_use: called with a unit
  // before each emitted instruction that reads its weights at home; may be empty. versions: must
  // outlive the stream.
  WeightStream(StepBuilder& builder, const WeightVersions& versions,
               const std::vector<std::vector<WeightUse>>& uses,
               std::function<void(std::int32_t unit)> before_use);
  // Call before the i-th compute instruction, for each in turn. Emits the fetches that start here,
  // for it and for later ones.
  void advance(std::size_t use_index);
  // The window that holds the weights now. Precondition: they are on the device.
  BufferId window(WeightUse weights) const;

 private:
  // Each version of a unit's weights is a value of its own, by this number.
  using Value = std::int32_t;
  Value value_of(WeightUse weights) const {
    return weights.version * builder_.unit_count() + weights.unit;
  }
  WeightUse weights_of(Value value) const {
    return {value % builder_.unit_count(), value / builder_.unit_count()};
  }
  bool resident_on_device(Value value) const;
  std::uint64_t slots_of(Value value) const;
  // The first use of the value that is not before the current instruction.
  std::size_t next_use(Value value) const;
  bool make_room(Value value, std::size_t target_use);
  void pass_uses(std::size_t use_index);
  void fetch(Value value);
  void bring_home(Value value, BufferId window);
  std::uint64_t just_enough_slots() const;
  void look_ahead();
  // The next distinct values to be fetched after use_index, nearest first.
  std::span<const Value> ahead(std::size_t use_index) const;

  StepBuilder& builder_;
  const WeightVersions& versions_;
  std::vector<std::vector<Value>> uses_;
  std::function<void(std::int32_t unit)> before_use_;
  std::vector<std::vector<std::size_t>> use_positions_;  // by value, ascending
  std::vector<std::size_t> next_position_;               // by value: of its next use
  std::vector<Value> ahead_;                             // of all uses, one after another
  std::vector<std::size_t> ahead_begin_;                 // by use: where its part begins
  std::set<std::pair<std::size_t, Value>> on_device_;    // (next use, value) of each window
  std::vector<BufferId> windows_;                        // by value; kNoId: not on the device
  std::uint64_t capacity_slots_ = 0;
  std::uint64_t used_slots_ = 0;
};

}  // namespace sluice::schedule
