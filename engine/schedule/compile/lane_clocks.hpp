// Vector clocks over the lanes of one rank: the instructions that are done when another one starts.
//
// Lanes retire in order. So when the k-th instruction of a lane is done, the first k are, and a
// clock is one count per lane. A Release of a pipelined lane retires after its lane's transfers,
// but the lane starts later instructions before that (retires_behind). So later instructions do not
// inherit the deps of such a Release on its own lane. Ranks meet only through messages, which carry
// no buffer hazards; clocks of different ranks never mix, and cost does not grow with the number of
// ranks. The passes that add deps (link, pack) use these clocks; validate has its own.
#pragma once

#include <array>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

class LaneClocks {
 public:
  explicit LaneClocks(const Schedule& schedule);

  // Instructions are visited in list order: begin, then require and ordered, then end.
  void begin(const Instruction& instruction);
  // Is `before` (an earlier instruction of the same rank) done whenever the current one starts?
  bool ordered(InstructionId before) const;
  // The current instruction waits for `before`.
  void require(InstructionId before);
  void end();

 private:
  // clock[lane]: the number of the lane's instructions that are done.
  using Clock = std::array<std::uint32_t, kLaneCount>;
  struct LaneState {
    Clock start{};  // known to the next instruction of a pipelined lane
    Clock done{};
    std::uint32_t count = 0;
  };
  LaneState& lane_of(const Instruction& instruction);

  const Schedule& schedule_;
  std::vector<std::array<LaneState, kLaneCount>> lanes_;  // by rank
  std::vector<std::uint32_t> positions_;                  // in its lane, from 1
  std::vector<Clock> done_;                               // by instruction
  const Instruction* current_ = nullptr;
  Clock start_{};
  Clock onward_{};  // the part of start_ that its lane's next instruction knows too
};

// Adds to `instruction.deps` those of `candidates` (earlier instructions of its rank) that lane
// order and the deps already there do not imply. Calls begin … end. Leaves deps sorted; empties
// candidates.
void add_deps(LaneClocks& clocks, Instruction& instruction, std::vector<InstructionId>& candidates);

}  // namespace sluice::schedule
