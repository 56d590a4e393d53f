// The parts of validate (private to it): the problems found, and the order of events.
#pragma once

#include <array>
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
    return position_[before] <=
           start_[after][static_cast<std::size_t>(schedule_.instructions[before].lane)];
  }

 private:
  using Counts = std::array<std::uint32_t, kLaneCount>;
  const Schedule& schedule_;
  std::vector<std::uint32_t> position_;
  std::vector<Counts> start_;
};

// Checks ids, ranks, ranges and the Releases that end lifetimes. The other checks run only if this
// one finds nothing.
void check_structure(const Schedule& schedule, Problems& problems);
// Checks sends and receives, collectives, and that no instructions wait in a circle.
void check_messages(const Schedule& schedule, Problems& problems);
// Whether each op's uses fit together: copies move like to like, within one unit and micro-batch.
void check_meaning(const Schedule& schedule, Problems& problems);
// Checks for races, and that each read finds the expected value, for one outcome of the guards.
// Guard g takes effect if taken[g].
void check_contents(const Schedule& schedule, const HappensBefore& order,
                    const std::array<bool, kGuardCount>& taken, Problems& problems);
// Places and capacities.
void check_places(const Schedule& schedule, const HappensBefore& order,
                  const std::array<std::uint64_t, kTierCount>& budgets_bytes, Problems& problems);

}  // namespace sluice::schedule::validation
