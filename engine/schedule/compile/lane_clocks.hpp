// What is done when an instruction starts: vector clocks over the lanes of one rank.
//
// The k-th instruction of a lane is done implies that the first k are (lanes retire in order), so a
// clock is one count per lane. A Release of a pipelined lane is done behind its lane's transfers,
// yet the lane goes on before (retires_behind): what it waits for in its own lane, later ones do
// not know. Ranks meet only through messages, which carry no buffer hazards, so clocks of different
// ranks never mix and cost does not grow with the number of ranks. Used by the passes that add deps
// (link, pack); validate has its own.
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
  // counts[lane]: how many instructions of the lane are done.
  using Clock = std::array<std::uint32_t, kLaneCount>;
  struct LaneState {
    Clock start{};  // what the next instruction of a pipelined lane knows
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
  Clock onward_{};  // what of start_ its lane's next instruction knows too
};

// Adds to `instruction.deps` those of `candidates` (earlier instructions of its rank) that lane
// order and the deps already there do not imply. Calls begin … end. Leaves deps sorted; empties
// candidates.
void add_deps(LaneClocks& clocks, Instruction& instruction, std::vector<InstructionId>& candidates);

}  // namespace sluice::schedule
