// Seeded damage to compiled schedules: the mutations that validate must refuse where they matter.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "base/rng.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::testing {

enum class Mutation : std::uint8_t {
  kDropFetch,       // a transfer between tiers is missing
  kDropAny,         // any instruction but a Release is missing
  kSwapNeighbours,  // two neighbours of the list change places
  kSwapInLane,      // two neighbours of a lane change places, and their waits with them
  kDropDep,
  kEarlyRelease,  // a Release moves up past the last use of its buffer
  kDropRelease,
  kShrinkBuffer,      // a buffer is declared smaller
  kOverlap,           // a buffer is placed on another's memory
  kMoveLane,          // an instruction runs on another lane
  kRedirectUse,       // a use names another buffer
  kUnmatchedMessage,  // a send or receive is missing, or has another tag
  // Worlds of several ranks.
  kDropCollective,     // on one rank, or on all of its members
  kSwapCollectives,    // two neighbouring collectives of a rank change places, or of all ranks
  kRetargetPart,       // a part goes to another rank, or two parts change sources
  kShiftPart,          // a part lies off by a norm block of 4,096 elements
  kLeaveOutReduction,  // a gradient is not added, reduced, rounded or normed
  // Ranks that compute each micro-batch together.
  kForgeCut,  // a cut of a pass is missing, or is another operation or of other bytes
};
inline constexpr std::size_t kMutationCount = 18;
inline constexpr std::array<std::string_view, kMutationCount> kMutationNames{"drop_fetch",
                                                                             "drop_any",
                                                                             "swap_neighbours",
                                                                             "swap_in_lane",
                                                                             "drop_dep",
                                                                             "early_release",
                                                                             "drop_release",
                                                                             "shrink_buffer",
                                                                             "overlap",
                                                                             "move_lane",
                                                                             "redirect_use",
                                                                             "unmatched_message",
                                                                             "drop_collective",
                                                                             "swap_collectives",
                                                                             "retarget_part",
                                                                             "shift_part",
                                                                             "leave_out_reduction",
                                                                             "forge_cut"};

// The schedule with its instructions in another order (old positions in new order; missing ones
// are dropped, and some may come again), deps following their instructions.
inline schedule::Schedule with_order(const schedule::Schedule& schedule,
                                     const std::vector<std::size_t>& order) {
  schedule::Schedule made = schedule;
  made.instructions.clear();
  std::vector<schedule::InstructionId> new_id(schedule.instructions.size(), schedule::kNoId);
  for (std::size_t i = 0; i < order.size(); ++i) {
    new_id[order[i]] = static_cast<schedule::InstructionId>(i);
  }
  for (const std::size_t old : order) {
    schedule::Instruction instruction = schedule.instructions[old];
    instruction.id = static_cast<schedule::InstructionId>(made.instructions.size());
    schedule::Deps deps;
    for (const schedule::InstructionId dep : instruction.deps) {
      if (new_id[dep] != schedule::kNoId) deps.push_back(new_id[dep]);
    }
    instruction.deps = std::move(deps);
    made.instructions.push_back(std::move(instruction));
  }
  return made;
}

class Mutator {
 public:
  Mutator(const schedule::Schedule& schedule, std::uint64_t seed)
      : schedule_(schedule), random_(seed, stream_of("test/mutate")) {}

  // Returns the mutant, or nothing if the schedule offers no place for this mutation.
  std::optional<schedule::Schedule> mutate(Mutation mutation) {
    using enum schedule::Op;
    const auto is_release = [](const schedule::Instruction& i) { return i.op == kRelease; };
    switch (mutation) {
      case Mutation::kDropFetch:
        return drop([](const schedule::Instruction& i) {
          return i.op == kUpload || i.op == kDownload || i.op == kStorageRead ||
                 i.op == kStorageWrite || i.op == kSpillActivation || i.op == kFetchActivation;
        });
      case Mutation::kDropAny:
        return drop(std::not_fn(is_release));
      case Mutation::kDropRelease:
        return drop(is_release);
      case Mutation::kSwapNeighbours:
        return swap_neighbours();
      case Mutation::kSwapInLane:
        return swap_in_lane();
      case Mutation::kDropDep:
        return drop_dep();
      case Mutation::kEarlyRelease:
        return early_release();
      case Mutation::kShrinkBuffer:
        return shrink_buffer();
      case Mutation::kOverlap:
        return overlap();
      case Mutation::kMoveLane:
        return move_lane();
      case Mutation::kRedirectUse:
        return redirect_use();
      case Mutation::kUnmatchedMessage:
        return unmatched_message();
      case Mutation::kDropCollective:
        return drop_collective();
      case Mutation::kSwapCollectives:
        return swap_collectives();
      case Mutation::kRetargetPart:
        return retarget_part();
      case Mutation::kShiftPart:
        return shift_part();
      case Mutation::kLeaveOutReduction:
        return drop([](const schedule::Instruction& i) {
          return i.op == kAccumulateGrad || i.op == kFoldGrad || i.op == kRoundGrad ||
                 i.op == kGradNorm;
        });
      case Mutation::kForgeCut:
        return forge_cut();
    }
    return std::nullopt;
  }

 private:
  using Pick = std::optional<std::size_t>;
  using Mutant = std::optional<schedule::Schedule>;

  std::size_t below(std::size_t bound) { return random_.below(draw_++, bound); }
  // One of the items for which `wanted` holds.
  template <typename T, typename Wanted>
  Pick pick(const std::vector<T>& items, Wanted wanted) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (wanted(items[i])) places.push_back(i);
    }
    if (places.empty()) return std::nullopt;
    return places[below(places.size())];
  }

  schedule::Schedule reordered(const std::vector<std::size_t>& order) const {
    return with_order(schedule_, order);
  }
  std::vector<std::size_t> list_order() const {
    std::vector<std::size_t> order(schedule_.instructions.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }

  // An instruction stands before an earlier one. Deps on later ones cannot be kept.
  schedule::Schedule moved_up(std::size_t from, std::size_t to) const {
    std::vector<std::size_t> order = list_order();
    const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
    std::rotate(at(to), at(from), at(from + 1));
    schedule::Schedule mutant = reordered(order);
    schedule::Deps& deps = mutant.instructions[to].deps;
    const auto later = [&](schedule::InstructionId dep) { return dep >= to; };
    deps.erase(std::remove_if(deps.begin(), deps.end(), later), deps.end());
    return mutant;
  }

  // Its dependents wait for its own dependencies instead, so that only its effect is missing.
  template <typename Wanted>
  Mutant drop(Wanted wanted) {
    const Pick victim = pick(schedule_.instructions, wanted);
    if (!victim) return std::nullopt;
    schedule::Schedule source = schedule_;
    const schedule::Deps& inherited = source.instructions[*victim].deps;
    for (schedule::Instruction& instruction : source.instructions) {
      if (std::find(instruction.deps.begin(), instruction.deps.end(), *victim) !=
          instruction.deps.end()) {
        instruction.deps.append(inherited.data(), inherited.size());
      }
    }
    std::vector<std::size_t> order = list_order();
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(*victim));
    return Mutator(source, 0).reordered(order);
  }

  Mutant swap_neighbours() {
    std::vector<std::size_t> order = list_order();
    if (order.size() < 2) return std::nullopt;
    const std::size_t at = below(order.size() - 1);
    std::swap(order[at], order[at + 1]);
    return reordered(order);
  }

  // The later one moves to just before the earlier one, so all deps of others stay in list order.
  Mutant swap_in_lane() {
    if (schedule_.instructions.empty()) return std::nullopt;
    const std::size_t later = below(schedule_.instructions.size());
    const schedule::Instruction& moved = schedule_.instructions[later];
    for (std::size_t i = later; i-- > 0;) {
      const schedule::Instruction& earlier = schedule_.instructions[i];
      if (earlier.lane != moved.lane || earlier.rank != moved.rank) continue;
      return moved_up(later, i);
    }
    return std::nullopt;
  }

  Mutant drop_dep() {
    const Pick victim = pick(schedule_.instructions,
                             [](const schedule::Instruction& i) { return !i.deps.empty(); });
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Deps& deps = mutant.instructions[*victim].deps;
    deps.erase(deps.begin() + static_cast<std::ptrdiff_t>(below(deps.size())));
    return mutant;
  }

  Mutant early_release() {
    const Pick release = pick(schedule_.instructions, [](const schedule::Instruction& i) {
      return i.op == schedule::Op::kRelease && i.id > 0;
    });
    if (!release) return std::nullopt;
    const std::size_t distance = 1 + below(std::min<std::size_t>(*release, 12));
    return moved_up(*release, *release - distance);
  }

  Mutant shrink_buffer() {
    const Pick victim =
        pick(schedule_.buffers, [](const schedule::Buffer& b) { return b.bytes > 1; });
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Buffer& buffer = mutant.buffers[*victim];
    if (buffer.window && buffer.slots.size() > 1 && below(2) == 0) {
      buffer.slots.pop_back();
    } else {
      buffer.bytes = buffer.bytes / 2;
    }
    return mutant;
  }

  Mutant overlap() {
    const Pick victim = pick(schedule_.buffers, [](const schedule::Buffer&) { return true; });
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Buffer& buffer = mutant.buffers[*victim];
    const Pick other = pick(schedule_.buffers, [&](const schedule::Buffer& b) {
      return b.id != buffer.id && b.tier == buffer.tier && b.window == buffer.window &&
             b.rank == buffer.rank;
    });
    if (!other) return std::nullopt;
    const schedule::Buffer& place = schedule_.buffers[*other];
    if (buffer.window) {
      buffer.slots[below(buffer.slots.size())] = place.slots[below(place.slots.size())];
    } else {
      buffer.offset_bytes = place.offset_bytes;
    }
    return mutant;
  }

  Mutant move_lane() {
    const Pick victim =
        pick(schedule_.instructions, [](const schedule::Instruction&) { return true; });
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Instruction& instruction = mutant.instructions[*victim];
    const auto lane = static_cast<std::size_t>(instruction.lane);
    instruction.lane = static_cast<schedule::Lane>((lane + 1 + below(schedule::kLaneCount - 1)) %
                                                   schedule::kLaneCount);
    return mutant;
  }

  Mutant redirect_use() {
    const Pick victim = pick(schedule_.instructions,
                             [](const schedule::Instruction& i) { return !i.reads.empty(); });
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Use& use =
        mutant.instructions[*victim].reads[below(mutant.instructions[*victim].reads.size())];
    const schedule::Buffer& original = schedule_.buffers[use.buffer];
    const Pick other = pick(schedule_.buffers, [&](const schedule::Buffer& b) {
      return b.id != original.id && b.role == original.role && b.tier == original.tier &&
             b.bytes == original.bytes && b.rank == original.rank;
    });
    if (!other) return std::nullopt;
    use.buffer = static_cast<schedule::BufferId>(*other);
    return mutant;
  }

  Mutant unmatched_message() {
    const auto is_message = [](const schedule::Instruction& i) {
      return i.op == schedule::Op::kSendForward || i.op == schedule::Op::kRecvForward ||
             i.op == schedule::Op::kSendBackward || i.op == schedule::Op::kRecvBackward;
    };
    if (below(2) == 0) return drop(is_message);
    const Pick victim = pick(schedule_.instructions, is_message);
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    mutant.instructions[*victim].tag += 1 + static_cast<std::int32_t>(below(2));
    return mutant;
  }

  static bool is_cut(const schedule::Instruction& instruction) {
    return instruction.lane == schedule::Lane::kInner && instruction.microbatch >= 0 &&
           instruction.op == schedule::Op::kAllReduce;
  }
  // One cut on all ranks of the group, in the order of their lists.
  std::vector<std::size_t> members_of_cut(std::size_t victim) const {
    const std::vector<std::int32_t>& group =
        schedule_.groups[static_cast<std::size_t>(schedule_.instructions[victim].group)].ranks;
    const auto cuts_of = [&](std::int32_t rank) {
      std::vector<std::size_t> places;
      for (std::size_t i = 0; i < schedule_.instructions.size(); ++i) {
        const schedule::Instruction& instruction = schedule_.instructions[i];
        if (is_cut(instruction) && instruction.rank == rank) places.push_back(i);
      }
      return places;
    };
    const std::vector<std::size_t> own = cuts_of(schedule_.instructions[victim].rank);
    const auto number = std::find(own.begin(), own.end(), victim) - own.begin();
    std::vector<std::size_t> members;
    for (const std::int32_t rank : group) {
      members.push_back(cuts_of(rank).at(static_cast<std::size_t>(number)));
    }
    return members;
  }
  // On one rank, or on all of its group alike.
  Mutant forge_cut() {
    const Pick victim = pick(schedule_.instructions, is_cut);
    if (!victim) return std::nullopt;
    std::vector<std::size_t> places{*victim};
    if (below(2) == 0) places = members_of_cut(*victim);
    const std::size_t way = below(4);
    if (way == 0) {
      std::vector<std::size_t> order = list_order();
      for (const std::size_t place : places) std::erase(order, place);
      return reordered(order);
    }
    schedule::Schedule mutant = schedule_;
    for (const std::size_t place : places) {
      schedule::Instruction& cut = mutant.instructions[place];
      if (way == 1) {
        cut.reduction = static_cast<schedule::CutKind>((static_cast<int>(cut.reduction) + 1) % 6);
      } else if (way == 2) {
        cut.bytes += dtype_bytes(cut.reduced);
      } else {
        // The first half of the value alone, with the bytes of that half.
        cut.reads.front().bytes /= 2;
        cut.writes.front().bytes /= 2;
        cut.bytes /= 2;
      }
    }
    return mutant;
  }

  static bool is_collective(const schedule::Instruction& instruction) {
    return instruction.op == schedule::Op::kGather || instruction.op == schedule::Op::kAllToAll;
  }
  // The positions of a rank's collectives in the list.
  std::vector<std::size_t> collectives_of(std::int32_t rank) const {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < schedule_.instructions.size(); ++i) {
      const schedule::Instruction& instruction = schedule_.instructions[i];
      if (is_collective(instruction) && instruction.rank == rank) places.push_back(i);
    }
    return places;
  }

  Mutant drop_collective() {
    if (below(2) == 0) return drop(is_collective);
    const std::size_t count = collectives_of(0).size();
    if (count == 0) return std::nullopt;
    const std::size_t nth = below(count);
    std::vector<std::size_t> order = list_order();
    for (std::int32_t rank = 0; rank < schedule_.ranks; ++rank) {
      const std::vector<std::size_t> places = collectives_of(rank);  // ranks of a pipeline differ
      if (nth < places.size()) std::erase(order, places[nth]);
    }
    return reordered(order);
  }

  Mutant swap_collectives() {
    const std::size_t count = collectives_of(0).size();
    if (count < 2) return std::nullopt;
    const std::size_t nth = below(count - 1);
    const bool all = below(2) == 0;
    const auto one = static_cast<std::int32_t>(below(static_cast<std::size_t>(schedule_.ranks)));
    std::vector<std::size_t> order = list_order();
    for (std::int32_t rank = 0; rank < schedule_.ranks; ++rank) {
      if (!all && rank != one) continue;
      const std::vector<std::size_t> places = collectives_of(rank);
      if (nth + 1 < places.size()) std::swap(order[places[nth]], order[places[nth + 1]]);
    }
    return reordered(order);
  }

  // A collective with parts that name their ranks.
  Pick pick_parts(std::size_t least) {
    return pick(schedule_.instructions, [&](const schedule::Instruction& i) {
      return is_collective(i) && i.writes.size() >= least;
    });
  }

  Mutant retarget_part() {
    const Pick victim = pick_parts(2);
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Instruction& instruction = mutant.instructions[*victim];
    schedule::Use& part = instruction.writes[below(instruction.writes.size())];
    schedule::Use& other = instruction.writes[below(instruction.writes.size())];
    if (below(2) == 0 && part.peer != other.peer) {
      std::swap(part.peer, other.peer);
    } else {
      part.peer = (part.peer + 1) % schedule_.ranks;
    }
    return mutant;
  }

  Mutant shift_part() {
    const Pick victim = pick_parts(1);
    if (!victim) return std::nullopt;
    schedule::Schedule mutant = schedule_;
    schedule::Instruction& instruction = mutant.instructions[*victim];
    const bool reads = !instruction.reads.empty() && below(2) == 0;
    schedule::Uses& uses = reads ? instruction.reads : instruction.writes;
    schedule::Use& use = uses[below(uses.size())];
    const schedule::Buffer& buffer = schedule_.buffers[use.buffer];
    const std::uint64_t block_bytes =
        buffer.role == schedule::BufferRole::kState ? bytes_of(buffer.dtype, 4096) : sizeof(double);
    if (use.offset_bytes >= block_bytes && below(2) == 0) {
      use.offset_bytes -= block_bytes;
    } else if (use.offset_bytes + use.bytes + block_bytes <= buffer.bytes) {
      use.offset_bytes += block_bytes;
    } else if (use.bytes > block_bytes) {
      use.bytes -= block_bytes;
    } else {
      return std::nullopt;
    }
    return mutant;
  }

  const schedule::Schedule& schedule_;
  CounterRng random_;
  std::uint64_t draw_ = 0;
};

}  // namespace sluice::testing
