// Passes that ranks of tensor and context groups compute together, as terms (private to interpret).
//
// A segment's values are named by the inputs of its pass and by its rank. A collective between two
// segments makes terms that remember the ranks that they are made of. The next segment must find
// values of its own last segment, and between them those of every rank of one of its groups; else
// its results are other terms. A pass that has ended is named by all inputs that reached it,
// however it was cut: so a Recompute that leaves out cuts makes the terms of its Forward.
//
// A value that goes round a ring remembers the rank of its keys, and the ranks that it has visited.
// Each hop must bring keys that the rank has not attended to, in values that it has not had before.
// A ring ends when every value has visited all ranks, and every rank has attended to the keys of
// all.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/schedule/check/symbolic_memory.hpp"

namespace sluice::schedule::symbolic {

class SegmentedPasses {
 public:
  explicit SegmentedPasses(const Schedule& schedule);

  // The rank's number among those that compute each micro-batch together; 0 if it is alone.
  // rank: as in the schedule.
  std::int32_t place_of(std::int32_t rank) const { return ranks_[world(rank)].place; }
  // The number of its part of each unit, and of each sequence.
  std::int32_t part_of(std::int32_t rank) const { return ranks_[world(rank)].part; }
  std::int32_t context_of(std::int32_t rank) const { return ranks_[world(rank)].context; }

  // The name of an instruction's results. inputs: of its first segment; later ones are known by it.
  // values: the parts that it reads of buffers that it also writes.
  Term advance(const Instruction& instruction, const Term& inputs, const std::vector<Term>& values);
  // Such a result, of an instruction that leaves segments.
  void note(const Instruction& instruction, const Term& made);
  // The name of the whole pass with these inputs, if it has ended; else the inputs.
  Term whole_of(const Term& inputs) const;

  // The instructions that did not find the values that they need.
  const std::vector<InstructionId>& mixed() const { return mixed_; }

  // The result of a collective on the members' terms: a sum or maximum of all, or the value of one
  // that has moved. begin: of the value in its buffer.
  Term combine(const Instruction& instruction, const std::vector<Term>& terms, std::uint64_t begin);
  // The part of a scattered value that another rank has now, where this one had `of`.
  Term given_away(const Instruction& instruction, const Term& of);

 private:
  struct PassId {
    Op op = Op::kForward;
    std::int32_t unit = -1, microbatch = -1;
    auto operator<=>(const PassId&) const = default;
  };
  using Places = std::set<std::int32_t>;
  // A value that goes round a ring: the place of its keys, and those that have had it.
  struct Route {
    std::int32_t subject = -1;
    Places visited;
    bool operator==(const Route&) const = default;
  };
  // The parts that one rank's values after a segment are made of.
  struct Made {
    PassId pass;
    std::int32_t end = 0;  // of the segments
    std::int32_t place = -1;
    std::map<std::int32_t, Term> inputs;    // by place
    std::int32_t subject = -1;              // the keys that the rank has
    std::map<std::uint64_t, Route> routes;  // by begin of the value
  };
  struct Values {
    PassId pass;
    std::int32_t end = 0;
    std::vector<std::shared_ptr<const Made>> of;
    bool crossed = false;               // by a collective
    std::int32_t group = -1;            // of ranks that it crossed between
    std::optional<std::uint64_t> hops;  // round a ring, and the value's begin
  };
  struct Open {
    Term inputs;
    std::int32_t end = 0;
    std::map<std::int32_t, Term> all;  // of the ranks that values have arrived from, and its own
    std::int32_t subject = -1;
    Places attended;  // the keys that hops have brought
    std::map<std::uint64_t, Route> routes;
    std::shared_ptr<const Made> made;
  };
  struct Whole {
    Term term;
    std::map<std::int32_t, Term> inputs;
  };
  struct Rank {
    std::int32_t place = 0, part = 0, context = 0;
    Places parts, contexts;  // the places of both groups; empty: there is none
  };
  static PassId id_of(const Instruction& instruction) {
    return {instruction.op, instruction.unit, instruction.microbatch};
  }
  std::size_t world(std::int32_t rank) const {
    return static_cast<std::size_t>(first_rank_ + rank);
  }
  // Takes the values between two segments; false: they are not those that the next one needs.
  bool arrive(const Rank& self, const PassId& id, Open& pass, const std::vector<Term>& values);
  static bool hop(const Rank& self, Open& pass, const std::map<std::uint64_t, Route>& arrived);
  static bool end_ring(const Rank& self, Open& pass);
  Term name_whole(const Instruction& instruction, Open& pass);

  std::vector<Rank> ranks_;  // by world rank
  std::int32_t first_rank_ = 0;
  std::map<std::pair<std::int32_t, PassId>, Open> open_;  // by rank
  std::map<Term, Values> values_;
  std::map<Term, Whole> wholes_;
  std::vector<InstructionId> mixed_;
};

}  // namespace sluice::schedule::symbolic
