// The parts of validate (private to it): the problems found, and the order of events.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule::validation {

// Collects sentences up to a limit: one broken dep can break thousands of uses.
class Problems {
 public:
  void add(std::string sentence) {
    if (!full()) sentences_.push_back(std::move(sentence));
  }
  bool full() const { return sentences_.size() >= kMost; }
  std::size_t count() const { return sentences_.size(); }
  bool none() const { return sentences_.empty(); }
  std::vector<std::string> take() { return std::move(sentences_); }

 private:
  static constexpr std::size_t kMost = 16;
  std::vector<std::string> sentences_;
};

// "instruction 12 (Upload of unit 3, micro-batch 0)"
std::string describe(const Instruction& instruction);
// "buffer 7 (weight of unit 3 in device)"
std::string describe(const Buffer& buffer);

// Bytes of the buffer that a use touches.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
ByteRange bytes_of(const Use& use, const Buffer& buffer);

// Moves bytes without changing them.
bool is_copy(Op op);
bool is_compute(Op op);
bool is_send(Op op);
bool is_receive(Op op);
bool is_collective(Op op);

// The instructions of a rank that are done before another one starts, by lane order and deps.
class HappensBefore {
 public:
  explicit HappensBefore(const Schedule& schedule);
  // Whether `before` is done whenever `after` starts. Precondition: both are of one rank.
  bool done_before(InstructionId before, InstructionId after) const {
    const Turn& turn = turns_[before];
    return turn.position <= start_[after][static_cast<std::size_t>(turn.lane)];
  }

 private:
  using Counts = std::array<std::uint32_t, kLaneCount>;
  // The lane of an instruction, and how many of the lane are done when it is.
  struct Turn {
    std::uint32_t position = 0;
    Lane lane = Lane::kCompute;
  };
  std::vector<Turn> turns_;
  std::vector<Counts> start_;
};

// Checks ids, ranks, ranges and the Releases that end lifetimes. The other checks run only if this
// one finds nothing.
void check_structure(const Schedule& schedule, Problems& problems);
// Instructions that can only end together: a send and its receive, or the members of a collective.
// As one node of the wait graph they stand for the worst case, a send that blocks until received.
class Meetings {
 public:
  // Notes messages without another end, and collectives that a member misses.
  Meetings(const Schedule& schedule, Problems& problems);
  // Whether any instructions meet. If none do, each is its own node.
  bool any() const { return any_; }
  // The instruction that stands for i's meeting.
  InstructionId node(InstructionId i) const { return node_[i]; }
  // The members of i's collective by rank; empty for other ops, and if a member is missing.
  const std::vector<InstructionId>& members(InstructionId i) const {
    return round_[i] == kNoId ? none_ : rounds_[round_[i]];
  }
  // The use through which the source of a written part brings it; null: there is none.
  // Precondition: `write` is the write number `index` of `taker`, a Gather or an AllToAll.
  const Use* source_of(const Instruction& taker, std::size_t index) const;

 private:
  void match_messages(Problems& problems);
  void pair_up(const std::vector<InstructionId>& sends, const std::vector<InstructionId>& receives,
               Problems& problems);
  void match_collectives(Problems& problems);
  // The lists of one (group, tag), by world rank.
  using ByRank = std::map<std::int32_t, std::vector<InstructionId>>;
  bool name_missing(const Group& group, std::int32_t number, const ByRank& lists,
                    Problems& problems) const;

  const Schedule& schedule_;
  bool any_ = false;
  std::vector<InstructionId> node_;
  std::vector<std::uint32_t> round_;  // by instruction: index into rounds_
  std::vector<std::vector<InstructionId>> rounds_;
  std::vector<InstructionId> none_;
};

// Checks that no instructions wait in a circle, and that the parts which the members of a
// collective bring and take correspond.
void check_messages(const Schedule& schedule, const Meetings& meetings, Problems& problems);
// Whether each op's uses fit together: copies move like to like, within one unit and micro-batch.
void check_meaning(const Schedule& schedule, Problems& problems);
// Whether the reductions after each pass's segments are those of the declared cuts.
void check_cuts(const Schedule& schedule, Problems& problems);
// Checks the order around Commits.
void check_control(const Schedule& schedule, const HappensBefore& order, Problems& problems);
// Checks for races, and that each read finds the expected value.
void check_contents(const Schedule& schedule, const HappensBefore& order, const Meetings& meetings,
                    Problems& problems);
// Places and capacities.
void check_places(const Schedule& schedule, const HappensBefore& order,
                  const std::array<std::uint64_t, kTierCount>& budgets_bytes, Problems& problems);

}  // namespace sluice::schedule::validation
