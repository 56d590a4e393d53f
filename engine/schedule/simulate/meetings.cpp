// One pass over the list finds both kinds. A send waits in a queue of its channel (direction,
// ranks, tag) until the receive that takes it; the n-th collective of a group on each of its ranks
// belongs to the group's n-th round.
#include "engine/schedule/simulate/meetings.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <tuple>

#include "base/error.hpp"

namespace sluice::schedule {

Meetings::Meetings(const Schedule& schedule)
    : send_of_(schedule.instructions.size(), kNoId),
      round_of_(schedule.instructions.size(), kNoId) {
  using Channel = std::tuple<bool, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Channel, std::deque<InstructionId>> sends;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::size_t> entered;
  std::map<std::tuple<std::int32_t, std::int32_t, std::size_t>, std::uint32_t> rounds;
  // The list of one rank alone finds each message there when it asks for it.
  const bool is_part = world_ranks_of(schedule) > schedule.ranks;
  for (const Instruction& instruction : schedule.instructions) {
    switch (instruction.op) {
      case Op::kSendForward:
      case Op::kSendBackward:
        sends[{instruction.op == Op::kSendBackward, instruction.rank, instruction.peer,
               instruction.tag}]
            .push_back(instruction.id);
        break;
      case Op::kRecvForward:
      case Op::kRecvBackward: {
        if (is_part) break;
        auto& queue = sends[{instruction.op == Op::kRecvBackward, instruction.peer,
                             instruction.rank, instruction.tag}];
        SLUICE_CHECK_MSG(!queue.empty(), "a receive without an earlier send");
        send_of_[instruction.id] = queue.front();
        queue.pop_front();
        break;
      }
      case Op::kGather:
      case Op::kReduceScatter:
      case Op::kAllReduce:
      case Op::kAllToAll: {
        const std::size_t nth = entered[{instruction.group, instruction.tag, instruction.rank}]++;
        const auto [at, fresh] = rounds.try_emplace({instruction.group, instruction.tag, nth},
                                                    static_cast<std::uint32_t>(members_.size()));
        if (fresh) members_.emplace_back();
        members_[at->second].push_back(instruction.id);
        round_of_[instruction.id] = at->second;
        break;
      }
      default:
        break;
    }
  }
}

}  // namespace sluice::schedule
