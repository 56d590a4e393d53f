// One cursor for each rank. A cursor stops at a receive whose send has not been listed, and at a
// collective that other members have not reached. When all members stand at it, it is listed for
// all of them. Ids of buffers and instructions are shifted to follow those of earlier ranks.
#include "engine/schedule/merge.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

class Merger {
 public:
  explicit Merger(const std::vector<Schedule>& lists)
      : lists_(lists), at_(lists.size()), new_ids_(lists.size()), first_buffer_(lists.size()) {}

  Schedule run() {
    join_frames();
    while (true) {
      bool moved = false;
      for (std::size_t rank = 0; rank < lists_.size(); ++rank) moved = advance(rank) || moved;
      if (!moved) break;
    }
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      while (next(rank) != nullptr) list(rank);
    }
    return std::move(world_);
  }

 private:
  // Direction (forward, backward), sender, receiver, tag.
  using Channel = std::tuple<bool, std::int32_t, std::int32_t, std::int32_t>;

  // All but the instructions.
  void join_frames() {
    const Schedule& first = lists_.front();
    world_.ranks = static_cast<std::int32_t>(lists_.size());
    world_.groups = first.groups;
    for (const Group& group : first.groups) {
      for (const std::int32_t rank : group.ranks) SLUICE_CHECK(rank >= 0 && rank < world_.ranks);
    }
    world_.saved_parts = first.saved_parts;
    world_.segments = first.segments;
    world_.folds_in_ring = first.folds_in_ring;
    world_.delayed = first.delayed;
    world_.tensor_borders = first.tensor_borders;
    world_.slot_bytes = first.slot_bytes;
    world_.shares_device = first.shares_device;
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      const Schedule& list = lists_[rank];
      SLUICE_CHECK(list.ranks == 1 && list.first_rank == static_cast<std::int32_t>(rank) &&
                   world_ranks_of(list) == world_.ranks && list.groups == first.groups &&
                   list.delayed == first.delayed && list.segments == first.segments &&
                   list.slot_bytes == first.slot_bytes &&
                   list.shares_device == first.shares_device);
      world_.slot_count = std::max(world_.slot_count, list.slot_count);
      world_.device_arena_bytes = std::max(world_.device_arena_bytes, list.device_arena_bytes);
      world_.pinned_arena_bytes = std::max(world_.pinned_arena_bytes, list.pinned_arena_bytes);
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        world_.peak_bytes[tier] = std::max(world_.peak_bytes[tier], list.peak_bytes[tier]);
      }
      first_buffer_[rank] = static_cast<BufferId>(world_.buffers.size());
      join_buffers(rank);
      new_ids_[rank].assign(list.instructions.size(), kNoId);
    }
  }

  void join_buffers(std::size_t rank) {
    const BufferId base = first_buffer_[rank];
    for (Buffer buffer : lists_[rank].buffers) {
      buffer.id += base;
      buffer.rank = static_cast<std::int32_t>(rank);
      if (buffer.shadow_of != kNoId) buffer.shadow_of += base;
      world_.buffers.push_back(std::move(buffer));
    }
    const auto join = [&](std::vector<Residency>& into, const std::vector<Residency>& from) {
      for (Residency residency : from) {
        residency.home += base;
        into.push_back(residency);
      }
    };
    join(world_.entry, lists_[rank].entry);
    join(world_.exit, lists_[rank].exit);
    join(world_.commit, lists_[rank].commit);
  }

  const Instruction* next(std::size_t rank) const {
    const std::vector<Instruction>& instructions = lists_[rank].instructions;
    return at_[rank] < instructions.size() ? &instructions[at_[rank]] : nullptr;
  }

  static bool is_collective(Op op) {
    return op == Op::kGather || op == Op::kReduceScatter || op == Op::kAllReduce ||
           op == Op::kAllToAll;
  }

  bool advance(std::size_t rank) {
    bool moved = false;
    while (const Instruction* instruction = next(rank)) {
      if (is_collective(instruction->op)) {
        if (!list_meeting(*instruction)) break;
      } else if (is_blocked(rank, *instruction)) {
        break;
      } else {
        list(rank);
      }
      moved = true;
    }
    return moved;
  }

  // A receive uses up one send of its channel.
  bool is_blocked(std::size_t rank, const Instruction& instruction) {
    const auto self = static_cast<std::int32_t>(rank);
    switch (instruction.op) {
      case Op::kSendForward:
      case Op::kSendBackward:
        ++sent_[{instruction.op == Op::kSendBackward, self, instruction.peer, instruction.tag}];
        return false;
      case Op::kRecvForward:
      case Op::kRecvBackward: {
        std::size_t& waiting =
            sent_[{instruction.op == Op::kRecvBackward, instruction.peer, self, instruction.tag}];
        if (waiting == 0) return true;
        --waiting;
        return false;
      }
      default:
        return false;
    }
  }

  // Lists the collective for all members if each of them stands at it.
  bool list_meeting(const Instruction& instruction) {
    if (instruction.group < 0 || instruction.group >= std::ssize(world_.groups)) return false;
    const std::vector<std::int32_t>& members =
        world_.groups[static_cast<std::size_t>(instruction.group)].ranks;
    const bool all = std::all_of(members.begin(), members.end(), [&](std::int32_t rank) {
      const Instruction* other = next(static_cast<std::size_t>(rank));
      return other != nullptr && other->op == instruction.op && other->group == instruction.group &&
             other->tag == instruction.tag;
    });
    if (!all) return false;
    for (const std::int32_t rank : members) list(static_cast<std::size_t>(rank));
    return true;
  }

  void list(std::size_t rank) {
    Instruction instruction = lists_[rank].instructions[at_[rank]];
    const auto id = static_cast<InstructionId>(world_.instructions.size());
    new_ids_[rank][at_[rank]++] = id;
    instruction.id = id;
    instruction.rank = static_cast<std::int32_t>(rank);
    for (auto* uses : {&instruction.reads, &instruction.writes}) {
      for (Use& use : *uses) use.buffer += first_buffer_[rank];
    }
    for (InstructionId& dep : instruction.deps) dep = new_ids_[rank][dep];
    world_.instructions.push_back(std::move(instruction));
  }

  const std::vector<Schedule>& lists_;
  std::vector<std::size_t> at_;  // by rank: position in its list
  std::vector<std::vector<InstructionId>> new_ids_;
  std::vector<BufferId> first_buffer_;
  std::map<Channel, std::size_t> sent_;  // and not received yet
  Schedule world_;
};

}  // namespace

Schedule merge(const std::vector<Schedule>& lists) {
  SLUICE_CHECK(!lists.empty());
  return Merger(lists).run();
}

}  // namespace sluice::schedule
