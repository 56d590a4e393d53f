// The messages and collectives of a schedule: which instructions of other ranks each one meets.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// The instructions of other ranks that must have started or ended before one may run. The messages
// of a pair of ranks match in the order of the list, and so do the collectives of a group.
class Meetings {
 public:
  // Throws InternalError if a receive comes before its send. The list of one rank of a world has
  // nobody to meet.
  explicit Meetings(const Schedule& schedule);

  // The send of a message; kNoId for other ops, and in the list of one rank.
  InstructionId send_of(InstructionId receive) const { return send_of_[receive]; }
  // Members of the collective; empty for other ops.
  const std::vector<InstructionId>& members(InstructionId id) const {
    static const std::vector<InstructionId> none;
    return round_of_[id] == kNoId ? none : members_[round_of_[id]];
  }

 private:
  std::vector<InstructionId> send_of_;
  std::vector<std::uint32_t> round_of_;
  std::vector<std::vector<InstructionId>> members_;
};

}  // namespace sluice::schedule
