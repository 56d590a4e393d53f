// A vector clock has one count per lane. At its begin an instruction knows what its lane knows;
// each dep joins the clock of the dep's end; at its end the lane's own count grows by one. In a
// pipelined lane the next instruction starts from `start`, what was known when this one started,
// and not from its end.
#include "engine/schedule/compile/lane_clocks.hpp"

#include <algorithm>
#include <functional>

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

// The knowledge of both clocks.
void join(std::array<std::uint32_t, kLaneCount>& into,
          const std::array<std::uint32_t, kLaneCount>& other) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    into[lane] = std::max(into[lane], other[lane]);
  }
}

}  // namespace

LaneClocks::LaneClocks(const Schedule& schedule)
    : schedule_(schedule),
      lanes_(static_cast<std::size_t>(schedule.ranks)),
      positions_(schedule.instructions.size()),
      done_(schedule.instructions.size()) {}

LaneClocks::LaneState& LaneClocks::lane_of(const Instruction& instruction) {
  return lanes_.at(
      static_cast<std::size_t>(instruction.rank))[static_cast<std::size_t>(instruction.lane)];
}

void LaneClocks::begin(const Instruction& instruction) {
  SLUICE_CHECK(current_ == nullptr);
  current_ = &instruction;
  const LaneState& lane = lane_of(instruction);
  start_ = onward_ = lane_is_pipelined(instruction.lane) ? lane.start : lane.done;
}

bool LaneClocks::ordered(InstructionId before) const {
  const auto lane = static_cast<std::size_t>(schedule_.instructions[before].lane);
  return positions_[before] <= start_[lane];
}

// A Release that only retires after a transfer of its own lane passes nothing on to the lane's
// next instruction.
void LaneClocks::require(InstructionId before) {
  SLUICE_CHECK(before < current_->id && schedule_.instructions[before].rank == current_->rank);
  join(start_, done_[before]);
  if (!retires_behind(schedule_.instructions[before], *current_)) join(onward_, done_[before]);
}

void LaneClocks::end() {
  LaneState& lane = lane_of(*current_);
  positions_[current_->id] = ++lane.count;
  lane.start = onward_;
  join(lane.done, start_);
  lane.done[static_cast<std::size_t>(current_->lane)] = lane.count;
  done_[current_->id] = lane.done;
  current_ = nullptr;
}

void add_deps(LaneClocks& clocks, Instruction& instruction,
              std::vector<InstructionId>& candidates) {
  // Later instructions imply more, so they go first. The remaining set is close to the least one.
  candidates.insert(candidates.end(), instruction.deps.begin(), instruction.deps.end());
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  instruction.deps.clear();
  clocks.begin(instruction);
  for (const InstructionId candidate : candidates) {
    if (candidate == instruction.id || clocks.ordered(candidate)) continue;
    clocks.require(candidate);
    instruction.deps.push_back(candidate);
  }
  clocks.end();
  std::reverse(instruction.deps.begin(), instruction.deps.end());
  candidates.clear();
}

}  // namespace sluice::schedule
