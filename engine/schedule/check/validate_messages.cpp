// Part of validate: every message has its other end, and no instructions wait in a circle.
//
// The k-th send of a channel meets its k-th receive, and the n-th collective of a group is one
// meeting of all members. Each meeting becomes one node of a wait graph with the deps and lane
// orders as edges. A topological sort of the graph proves the absence of deadlock.
#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "engine/schedule/check/validation.hpp"
#include "engine/schedule/even_parts.hpp"

namespace sluice::schedule::validation {
namespace {

// The bytes of one use.
std::uint64_t used_bytes(const Schedule& schedule, const Use& use) {
  const ByteRange range = bytes_of(use, schedule.buffers[use.buffer]);
  return range.end - range.begin;
}

std::uint64_t used_bytes(const Schedule& schedule, const Uses& uses) {
  std::uint64_t sum = 0;
  for (const Use& use : uses) sum += used_bytes(schedule, use);
  return sum;
}

bool is_member(const Group& group, std::int32_t world_rank) {
  return std::binary_search(group.ranks.begin(), group.ranks.end(), world_rank);
}

// Both ends of a message hold the same value: its role, unit and position.
bool is_received_alike(const Schedule& schedule, const Instruction& send,
                       const Instruction& receive) {
  if (send.unit != receive.unit || send.reads.size() != receive.writes.size()) return false;
  for (std::size_t k = 0; k < send.reads.size(); ++k) {
    const Buffer& from = schedule.buffers[send.reads[k].buffer];
    const Buffer& to = schedule.buffers[receive.writes[k].buffer];
    if (from.role != to.role || from.unit != to.unit || from.microbatch != to.microbatch ||
        bytes_of(send.reads[k], from).begin != bytes_of(receive.writes[k], to).begin) {
      return false;
    }
  }
  return true;
}

bool moves_parts(Op op) {
  return op == Op::kGather || op == Op::kAllToAll;
}

}  // namespace

Meetings::Meetings(const Schedule& schedule, Problems& problems)
    : schedule_(schedule),
      node_(schedule.instructions.size()),
      round_(schedule.instructions.size(), kNoId) {
  for (std::size_t i = 0; i < node_.size(); ++i) node_[i] = static_cast<InstructionId>(i);
  match_messages(problems);
  match_collectives(problems);
}

// First in, first out in each channel. Both ends must agree on the bytes.
void Meetings::match_messages(Problems& problems) {
  // Direction (forward, backward), sender, receiver, tag: a first-in first-out channel.
  using Channel = std::tuple<bool, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Channel, std::vector<InstructionId>> sends;
  std::map<Channel, std::vector<InstructionId>> receives;
  for (const Instruction& instruction : schedule_.instructions) {
    const bool send = is_send(instruction.op);
    if (!send && !is_receive(instruction.op)) continue;
    const std::int32_t self = world_rank_of(schedule_, instruction.rank);
    if (instruction.peer < 0 || instruction.peer >= world_ranks_of(schedule_) ||
        instruction.peer == self) {
      problems.add(describe(instruction) + " has no peer");
      continue;
    }
    const bool backward =
        instruction.op == Op::kSendBackward || instruction.op == Op::kRecvBackward;
    const std::int32_t from = send ? self : instruction.peer;
    const std::int32_t to = send ? instruction.peer : self;
    (send ? sends : receives)[{backward, from, to, instruction.tag}].push_back(instruction.id);
  }
  for (const auto& [channel, list] : sends) pair_up(list, receives[channel], problems);
  for (const auto& [channel, list] : receives) {
    if (!sends.contains(channel)) {
      problems.add(describe(schedule_.instructions[list.front()]) + " has no matching send");
    }
  }
}

void Meetings::pair_up(const std::vector<InstructionId>& sends,
                       const std::vector<InstructionId>& receives, Problems& problems) {
  for (std::size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
    if (k >= receives.size()) {
      problems.add(describe(schedule_.instructions[sends[k]]) + " has no matching receive");
      return;
    }
    const Instruction& receive = schedule_.instructions[receives[k]];
    if (k >= sends.size()) {
      problems.add(describe(receive) + " has no matching send");
      return;
    }
    const Instruction& send = schedule_.instructions[sends[k]];
    if (used_bytes(schedule_, send.reads) != used_bytes(schedule_, receive.writes) ||
        send.bytes != receive.bytes) {
      problems.add(describe(send) + " and " + describe(receive) + " differ in bytes");
    }
    if (send.microbatch != receive.microbatch) {
      problems.add(describe(send) + " is received for another micro-batch");
    }
    if (!is_received_alike(schedule_, send, receive)) {
      problems.add(describe(send) + " is received as another value");
    }
    if (send.id > receive.id) {
      problems.add(describe(receive) + " is listed before its send");
    }
    node_[receive.id] = send.id;
    any_ = true;
  }
}

// The n-th collective of a (group, tag) is one meeting of the group's ranks.
void Meetings::match_collectives(Problems& problems) {
  std::map<std::pair<std::int32_t, std::int32_t>, ByRank> lists;
  for (const Instruction& instruction : schedule_.instructions) {
    if (!is_collective(instruction.op)) continue;
    const std::int32_t self = world_rank_of(schedule_, instruction.rank);
    if (instruction.group < 0 || instruction.group >= std::ssize(schedule_.groups)) {
      problems.add(describe(instruction) + " names a group that does not exist");
    } else if (!is_member(schedule_.groups[static_cast<std::size_t>(instruction.group)], self)) {
      problems.add(describe(instruction) + " is of a rank outside group " +
                   std::to_string(instruction.group));
    } else {
      lists[{instruction.group, instruction.tag}][self].push_back(instruction.id);
    }
  }
  for (auto& [key, by_rank] : lists) {
    const Group& group = schedule_.groups[static_cast<std::size_t>(key.first)];
    if (name_missing(group, key.first, by_rank, problems)) continue;
    const std::vector<InstructionId>& first = by_rank.begin()->second;
    for (std::size_t k = 0; k < first.size(); ++k) {
      std::vector<InstructionId> members;
      for (const auto& [rank, list] : by_rank) {
        const Instruction& member = schedule_.instructions[list[k]];
        const Instruction& other = schedule_.instructions[first[k]];
        if (member.op != other.op || member.unit != other.unit || member.lane != other.lane) {
          problems.add(describe(member) + " meets " + describe(other));
        }
        node_[member.id] = first[k];
        round_[member.id] = static_cast<std::uint32_t>(rounds_.size());
        members.push_back(member.id);
      }
      rounds_.push_back(std::move(members));
      any_ = true;
    }
  }
}

// Names each member that enters fewer of the group's collectives than others do, and the first one
// that it surely misses. Returns whether there is any.
bool Meetings::name_missing(const Group& group, std::int32_t number, const ByRank& lists,
                            Problems& problems) const {
  const std::vector<InstructionId>* longest = nullptr;
  for (const auto& [rank, list] : lists) {
    if (longest == nullptr || list.size() > longest->size()) longest = &list;
  }
  bool missing = false;
  for (const std::int32_t rank : group.ranks) {
    const auto own = lists.find(rank);
    const std::size_t entered = own == lists.end() ? 0 : own->second.size();
    if (entered == longest->size()) continue;
    missing = true;
    problems.add("rank " + std::to_string(rank) + " enters " + std::to_string(entered) +
                 " collectives of group " + std::to_string(number) + " where others enter " +
                 std::to_string(longest->size()) + ", up to " +
                 describe(schedule_.instructions[longest->back()]));
  }
  return missing;
}

const Use* Meetings::source_of(const Instruction& taker, std::size_t index) const {
  const std::int32_t from = taker.writes[index].peer;
  // It is the k-th part that the taker has from this source.
  const auto begin = taker.writes.begin();
  auto k = std::count_if(begin, begin + static_cast<std::ptrdiff_t>(index),
                         [&](const Use& use) { return use.peer == from; });
  const std::int32_t self = world_rank_of(schedule_, taker.rank);
  for (const InstructionId id : members(taker.id)) {
    const Instruction& source = schedule_.instructions[id];
    if (world_rank_of(schedule_, source.rank) != from) continue;
    for (const Use& read : source.reads) {
      if (taker.op == Op::kAllToAll && read.peer != self) continue;
      if (k-- == 0) return &read;
    }
  }
  return nullptr;
}

namespace {

// Checks that each part which a member takes is one that another brings, that none is left over,
// and that `bytes` is what the rank sends.
class PartsCheck {
 public:
  PartsCheck(const Schedule& schedule, const Meetings& meetings, Problems& problems)
      : schedule_(schedule), meetings_(meetings), problems_(problems) {}

  void run() {
    for (const Instruction& instruction : schedule_.instructions) {
      if (instruction.lane == Lane::kInner && instruction.op == Op::kAllReduce) {
        check_reduction(instruction);
      }
      if (!moves_parts(instruction.op) || meetings_.members(instruction.id).empty()) continue;
      check_taken(instruction);
      check_brought(instruction);
      check_disjoint(instruction);
    }
  }

 private:
  const Buffer& buffer_of(const Use& use) const { return schedule_.buffers[use.buffer]; }

  bool correspond(const Use& from, const Use& to) const {
    const Buffer& source = buffer_of(from);
    const Buffer& target = buffer_of(to);
    if (source.role != target.role || source.dtype != target.dtype ||
        used_bytes(schedule_, from) != used_bytes(schedule_, to)) {
      return false;
    }
    if (source.role == BufferRole::kState) {
      return source.kind == target.kind && source.unit == target.unit &&
             elems_of(source, from) == elems_of(target, to);
    }
    // Partials of the norm stand in tensor order on every rank.
    return source.role != BufferRole::kNormPartial || from.offset_bytes == to.offset_bytes;
  }

  void check_taken(const Instruction& instruction) {
    for (std::size_t i = 0; i < instruction.writes.size(); ++i) {
      const Use* from = meetings_.source_of(instruction, i);
      const Use& to = instruction.writes[i];
      if (from != nullptr && correspond(*from, to)) {
        check_memory(instruction, *from, to);
        continue;
      }
      problems_.add(
          describe(instruction) + " takes " + describe(buffer_of(to)) + " from rank " +
          std::to_string(to.peer) + ", which brings " +
          (from == nullptr ? "nothing" : describe(buffer_of(*from)) + " of another part"));
    }
  }

  // What carries a part depends on the memory that it lies in, and both ranks must take one way.
  void check_memory(const Instruction& instruction, const Use& from, const Use& to) {
    const Tier source = buffer_of(from).tier, target = buffer_of(to).tier;
    if ((source == Tier::kDevice) == (target == Tier::kDevice)) return;
    problems_.add(describe(instruction) + " takes " + describe(buffer_of(to)) + " in " +
                  std::string(tier_name(target)) + " memory from rank " + std::to_string(to.peer) +
                  ", which has it in " + std::string(tier_name(source)) + " memory");
  }

  // A Gather's part goes to every other member, a part of an AllToAll to its peer.
  void check_brought(const Instruction& instruction) {
    const std::vector<InstructionId>& members = meetings_.members(instruction.id);
    const std::int32_t self = world_rank_of(schedule_, instruction.rank);
    std::uint64_t sent_bytes = 0;
    for (const InstructionId id : members) {
      const Instruction& other = schedule_.instructions[id];
      const std::int32_t rank = world_rank_of(schedule_, other.rank);
      std::ptrdiff_t brought = 0;
      for (const Use& use : instruction.reads) {
        if (instruction.op == Op::kAllToAll && use.peer != rank) continue;
        ++brought;
        if (rank != self) sent_bytes += used_bytes(schedule_, use);
      }
      const auto taken = std::count_if(other.writes.begin(), other.writes.end(),
                                       [&](const Use& use) { return use.peer == self; });
      // A rank may leave its own part where it is.
      if (taken == brought || (rank == self && taken == 0)) continue;
      problems_.add(describe(instruction) + " brings " + std::to_string(brought) +
                    " parts to rank " + std::to_string(rank) + ", which takes " +
                    std::to_string(taken));
    }
    if (sent_bytes != instruction.bytes) {
      problems_.add(describe(instruction) + " sends " + std::to_string(sent_bytes) +
                    " bytes and is said to send " + std::to_string(instruction.bytes));
    }
  }

  // The members of a reduction between segments bring the same part of the same value each, and put
  // the result in its place. The bytes are those of even parts: each goes to its owner, and back to
  // all others.
  void check_reduction(const Instruction& instruction) {
    const std::vector<InstructionId>& members = meetings_.members(instruction.id);
    if (members.empty()) return;
    const Instruction& first = schedule_.instructions[members.front()];
    const auto own = std::find(members.begin(), members.end(), instruction.id) - members.begin();
    bool alike = instruction.reads.size() == first.reads.size() &&
                 instruction.writes.size() >= instruction.reads.size() &&
                 instruction.reduction == first.reduction &&
                 instruction.microbatch == first.microbatch;
    std::uint64_t sent_bytes = 0;
    for (std::size_t i = 0; alike && i < instruction.reads.size(); ++i) {
      const Use& read = instruction.reads[i];
      const Use& write = instruction.writes[i];
      const Buffer& buffer = buffer_of(read);
      const Buffer& other = buffer_of(first.reads[i]);
      alike = buffer.role == other.role && buffer.unit == other.unit &&
              read.offset_bytes == first.reads[i].offset_bytes && read.bytes > 0 &&
              read.bytes == first.reads[i].bytes && write.buffer == read.buffer &&
              write.offset_bytes == read.offset_bytes && write.bytes == read.bytes;
      const std::uint64_t elems = elems_in(instruction.reduced, read.bytes);
      const auto ranks = static_cast<std::int32_t>(members.size());
      const ElemRange part = even_part(elems, ranks, static_cast<std::int32_t>(own));
      sent_bytes += inner_bytes(instruction.reduction, read.bytes,
                                bytes_of(instruction.reduced, part.elems()), members.size());
    }
    if (!alike) {
      problems_.add(describe(instruction) + " reduces another value than " + describe(first));
    } else if (sent_bytes != instruction.bytes) {
      problems_.add(describe(instruction) + " sends " + std::to_string(sent_bytes) +
                    " bytes and is said to send " + std::to_string(instruction.bytes));
    }
  }

  // No rank overwrites a part that it brings.
  void check_disjoint(const Instruction& instruction) {
    for (const Use& write : instruction.writes) {
      const ByteRange target = bytes_of(write, buffer_of(write));
      for (const Use& read : instruction.reads) {
        const ByteRange source = bytes_of(read, buffer_of(read));
        if (read.buffer != write.buffer || source.end <= target.begin ||
            target.end <= source.begin) {
          continue;
        }
        problems_.add(describe(instruction) + " overwrites the part of " +
                      describe(buffer_of(read)) + " that it brings");
        return;
      }
    }
  }

  const Schedule& schedule_;
  const Meetings& meetings_;
  Problems& problems_;
};

// Calls f(before, after) for each wait of a node for another, by dep or lane order.
template <typename F>
void for_edges(const Schedule& schedule, const Meetings& meetings, const F& f) {
  std::vector<std::array<InstructionId, kLaneCount>> last(static_cast<std::size_t>(schedule.ranks));
  for (auto& lanes : last) lanes.fill(kNoId);
  for (const Instruction& instruction : schedule.instructions) {
    InstructionId& previous = last[static_cast<std::size_t>(instruction.rank)]
                                  [static_cast<std::size_t>(instruction.lane)];
    const InstructionId node = meetings.node(instruction.id);
    if (previous != kNoId) f(meetings.node(previous), node);
    previous = instruction.id;
    for (const InstructionId dep : instruction.deps) f(meetings.node(dep), node);
  }
}

}  // namespace

void check_messages(const Schedule& schedule, const Meetings& meetings, Problems& problems) {
  // Without meetings each wait is for an earlier instruction of the list, as check_structure has
  // found of the deps. So the list itself is a topological order, and there are no parts.
  if (!meetings.any()) return;
  PartsCheck(schedule, meetings, problems).run();
  const std::size_t count = schedule.instructions.size();
  // The nodes after node i are next[begin[i]] up to next[begin[i + 1]].
  std::vector<std::size_t> begin(count + 1);
  for_edges(schedule, meetings, [&](InstructionId before, InstructionId) { ++begin[before + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<InstructionId> next(begin.back());
  std::vector<std::uint32_t> waits_for(count);
  std::vector<std::size_t> filled(begin.begin(), begin.end() - 1);
  for_edges(schedule, meetings, [&](InstructionId before, InstructionId after) {
    next[filled[before]++] = after;
    ++waits_for[after];
  });
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
    for (std::size_t edge = begin[at]; edge < begin[at + 1]; ++edge) {
      if (--waits_for[next[edge]] == 0) ready.push_back(next[edge]);
    }
  }
  for (InstructionId i = 0; i < count; ++i) {
    if (done[meetings.node(i)]) continue;
    problems.add(describe(schedule.instructions[i]) + " is in a circle of waits, or waits for one");
    return;
  }
}

}  // namespace sluice::schedule::validation
