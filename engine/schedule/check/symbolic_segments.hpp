// Passes that ranks of a tensor or context group compute together, as terms (private to interpret).
//
// A segment's values are named by the inputs of its pass and by its rank. A collective between two
// segments makes terms that remember all members' values. The next segment must find values of its
// own last segment, and between them those of every rank of the group; else its results are other
// terms. A pass that has ended is named by the inputs of all ranks, however it was cut: so a
// Recompute that leaves out cuts makes the terms of its Forward.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/schedule/check/symbolic_memory.hpp"

namespace sluice::schedule::symbolic {

class SegmentedPasses {
 public:
  explicit SegmentedPasses(const Schedule& schedule);

  // The rank's number among those that compute each micro-batch together; 0 if it is alone.
  // rank: as in the schedule.
  std::int32_t place_of(std::int32_t rank) const;
  // Whether the ranks of such a group hold whole units, and parts of each sequence.
  bool cuts_sequences() const { return cuts_sequences_; }

  // The name of an instruction's results. inputs: of its first segment; later ones are known by it.
  // values: the parts that it reads of buffers that it also writes.
  Term advance(const Instruction& instruction, const Term& inputs, const std::vector<Term>& values);
  // Such a result, of an instruction that leaves segments.
  void note(const Instruction& instruction, const Term& made);
  // The name of the whole pass with these inputs, if it has ended; else the inputs.
  Term whole_of(const Term& inputs) const;

  // What a collective makes of the members' terms: a sum or maximum of all, or the value of one
  // that has moved.
  Term combine(const Instruction& instruction, const std::vector<Term>& terms);
  // The part of a scattered value that another rank has now, where this one had `of`.
  Term given_away(const Instruction& instruction, const Term& of);

 private:
  struct PassId {
    Op op = Op::kForward;
    std::int32_t unit = -1, microbatch = -1;
    auto operator<=>(const PassId&) const = default;
  };
  // The values behind a segment, by place: the inputs that they are made of.
  struct Values {
    PassId pass;
    std::int32_t end = 0;  // of the segments
    std::map<std::int32_t, Term> inputs;
    bool crossed = false;  // by a collective
  };
  struct Open {
    Term inputs;
    std::int32_t end = 0;
    std::map<std::int32_t, Term> all;  // of all ranks, once a collective has brought them
  };
  static PassId id_of(const Instruction& instruction) {
    return {instruction.op, instruction.unit, instruction.microbatch};
  }

  std::vector<std::int32_t> places_;  // by world rank
  std::size_t group_ranks_ = 1;
  std::int32_t first_rank_ = 0;
  bool cuts_sequences_ = false;
  std::map<std::pair<std::int32_t, PassId>, Open> open_;  // by rank
  std::map<Term, Values> values_;
  std::map<Term, Term> wholes_;
};

}  // namespace sluice::schedule::symbolic
