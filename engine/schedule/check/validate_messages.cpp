// Part of validate: every message has its other end, and no instructions wait in a circle.
//
// The k-th send of a channel meets its k-th receive, and the n-th collective of a group is one
// meeting of all members. Each meeting becomes one node of a wait graph with the deps and lane
// orders as edges. A topological sort of the graph proves the absence of deadlock.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

// Instructions that can only end together: a send and its receive, or the members of a collective.
// As one node of the wait graph they stand for the worst case, a send that blocks until received.
class Meetings {
 public:
  Meetings(const Schedule& schedule, Problems& problems)
      : schedule_(schedule), problems_(problems), node_(schedule.instructions.size()) {
    for (std::size_t i = 0; i < node_.size(); ++i) node_[i] = static_cast<InstructionId>(i);
    match_messages();
    match_collectives();
  }
  // The instruction that stands for i's meeting.
  InstructionId node(InstructionId i) const { return node_[i]; }

 private:
  // Direction (forward, backward), sender, receiver, tag: a first-in first-out channel.
  using Channel = std::tuple<bool, std::int32_t, std::int32_t, std::int32_t>;

  // First in, first out in each channel. Both ends must agree on the bytes.
  void match_messages() {
    std::map<Channel, std::vector<InstructionId>> sends;
    std::map<Channel, std::vector<InstructionId>> receives;
    for (const Instruction& instruction : schedule_.instructions) {
      const bool send = is_send(instruction.op);
      if (!send && !is_receive(instruction.op)) continue;
      if (instruction.peer < 0 || instruction.peer >= schedule_.ranks ||
          instruction.peer == instruction.rank) {
        problems_.add(describe(instruction) + " has no peer");
        continue;
      }
      if (instruction.guard != Guard::kNone) {
        problems_.add(describe(instruction) + " is a message under a guard");
      }
      const bool backward =
          instruction.op == Op::kSendBackward || instruction.op == Op::kRecvBackward;
      const std::int32_t from = send ? instruction.rank : instruction.peer;
      const std::int32_t to = send ? instruction.peer : instruction.rank;
      (send ? sends : receives)[{backward, from, to, instruction.tag}].push_back(instruction.id);
    }
    for (const auto& [channel, list] : sends) pair_up(list, receives[channel]);
    for (const auto& [channel, list] : receives) {
      if (!sends.contains(channel)) {
        problems_.add(describe(schedule_.instructions[list.front()]) + " has no matching send");
      }
    }
  }

  void pair_up(const std::vector<InstructionId>& sends,
               const std::vector<InstructionId>& receives) {
    for (std::size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
      if (k >= receives.size()) {
        problems_.add(describe(schedule_.instructions[sends[k]]) + " has no matching receive");
        return;
      }
      const Instruction& receive = schedule_.instructions[receives[k]];
      if (k >= sends.size()) {
        problems_.add(describe(receive) + " has no matching send");
        return;
      }
      const Instruction& send = schedule_.instructions[sends[k]];
      if (used_bytes(send.reads) != used_bytes(receive.writes) || send.bytes != receive.bytes) {
        problems_.add(describe(send) + " and " + describe(receive) + " differ in bytes");
      }
      if (send.microbatch != receive.microbatch) {
        problems_.add(describe(send) + " is received for another micro-batch");
      }
      if (send.id > receive.id) {
        problems_.add(describe(receive) + " is listed before its send");
      }
      node_[receive.id] = send.id;
    }
  }

  std::uint64_t used_bytes(const std::vector<Use>& uses) const {
    std::uint64_t sum = 0;
    for (const Use& use : uses) {
      const ByteRange range = bytes_of(use, schedule_.buffers[use.buffer]);
      sum += range.end - range.begin;
    }
    return sum;
  }

  // The n-th collective of a (group, tag) is one meeting of the group's ranks.
  void match_collectives() {
    using Key = std::pair<std::int32_t, std::int32_t>;
    std::map<Key, std::map<std::int32_t, std::vector<InstructionId>>> groups;
    for (const Instruction& instruction : schedule_.instructions) {
      if (!is_collective(instruction.op)) continue;
      groups[{instruction.group, instruction.tag}][instruction.rank].push_back(instruction.id);
    }
    for (const auto& [key, by_rank] : groups) {
      const std::vector<InstructionId>& first = by_rank.begin()->second;
      for (const auto& [rank, list] : by_rank) {
        if (list.size() != first.size()) {
          problems_.add("rank " + std::to_string(rank) + " enters the collectives of group " +
                        std::to_string(key.first) + " another number of times than its peers");
          continue;
        }
        for (std::size_t k = 0; k < list.size(); ++k) {
          if (schedule_.instructions[list[k]].op != schedule_.instructions[first[k]].op) {
            problems_.add(describe(schedule_.instructions[list[k]]) + " meets " +
                          describe(schedule_.instructions[first[k]]));
          }
          node_[list[k]] = first[k];
        }
      }
    }
  }

  const Schedule& schedule_;
  Problems& problems_;
  std::vector<InstructionId> node_;
};

}  // namespace

void check_messages(const Schedule& schedule, Problems& problems) {
  const Meetings meetings(schedule, problems);
  const std::size_t count = schedule.instructions.size();
  std::vector<std::vector<InstructionId>> next(count);
  std::vector<std::uint32_t> waits_for(count);
  std::vector<std::array<InstructionId, kLaneCount>> last(static_cast<std::size_t>(schedule.ranks));
  for (auto& lanes : last) lanes.fill(kNoId);
  const auto add_edge = [&](InstructionId before, InstructionId after) {
    next[meetings.node(before)].push_back(meetings.node(after));
    ++waits_for[meetings.node(after)];
  };
  for (const Instruction& instruction : schedule.instructions) {
    InstructionId& previous = last[static_cast<std::size_t>(instruction.rank)]
                                  [static_cast<std::size_t>(instruction.lane)];
    if (previous != kNoId) add_edge(previous, instruction.id);
    previous = instruction.id;
    for (const InstructionId dep : instruction.deps) add_edge(dep, instruction.id);
  }
  // Kahn's topological sort; the nodes left over wait in a circle.
  std::vector<InstructionId> ready;
  std::vector<bool> done(count, false);
  for (InstructionId i = 0; i < count; ++i) {
    if (meetings.node(i) == i && waits_for[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const InstructionId at = ready.back();
    ready.pop_back();
    done[at] = true;
    for (const InstructionId after : next[at]) {
      if (--waits_for[after] == 0) ready.push_back(after);
    }
  }
  for (InstructionId i = 0; i < count; ++i) {
    if (done[meetings.node(i)]) continue;
    problems.add(describe(schedule.instructions[i]) + " is in or behind a circle of waits");
    return;
  }
}

}  // namespace sluice::schedule::validation
