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

namespace sluice::schedule {

class WeightStream {
 public:
  // uses[i]: the units that the i-th compute instruction reads weights of. before_use: called with
  // a unit before each emitted instruction that reads its weights at home; may be empty.
  WeightStream(StepBuilder& builder, std::vector<std::vector<std::int32_t>> uses,
               std::function<void(std::int32_t unit)> before_use);
  // Call before the i-th compute instruction, for each in turn. Emits the fetches that start here, for it and for
  // later ones.
  void advance(std::size_t use_index);
  // The window that holds the unit's weights now. Precondition: they are on the device.
  BufferId window(std::int32_t unit) const;

 private:
  bool resident_on_device(std::int32_t unit) const;
  std::uint64_t slots_of(std::int32_t unit) const;
  // The first use of the unit that is not before the current instruction.
  std::size_t next_use(std::int32_t unit) const;
  bool make_room(std::int32_t unit, std::size_t target_use);
  void pass_uses(std::size_t use_index);
  void fetch(std::int32_t unit);
  void bring_home(std::int32_t unit, BufferId window);
  std::uint64_t just_enough_slots() const;
  void look_ahead();
  // The next distinct units to be fetched after use_index, nearest first.
  std::span<const std::int32_t> ahead(std::size_t use_index) const;

  StepBuilder& builder_;
  std::vector<std::vector<std::int32_t>> uses_;
  std::function<void(std::int32_t unit)> before_use_;
  std::vector<std::vector<std::size_t>> use_positions_;       // by unit, ascending
  std::vector<std::size_t> next_position_;                    // by unit: of its next use
  std::vector<std::int32_t> ahead_;                           // of all uses, one after another
  std::vector<std::size_t> ahead_begin_;                      // by use: where its part begins
  std::set<std::pair<std::size_t, std::int32_t>> on_device_;  // (next use, unit) of each window
  std::vector<BufferId> windows_;                             // by unit; kNoId: not on the device
  std::uint64_t capacity_slots_ = 0;
  std::uint64_t used_slots_ = 0;
};

}  // namespace sluice::schedule
