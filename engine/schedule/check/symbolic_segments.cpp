// The names of values are hashes, and what a hash was made of is kept beside it: the pass, the
// segments that are done, and the inputs of each rank whose values it has. A value that a
// collective made is known only if all of its members had values of one pass behind one segment, so
// that a rank that brings another value, or none, leaves a hash of which nothing is known.
#include "engine/schedule/check/symbolic_segments.hpp"

#include <algorithm>

namespace sluice::schedule::symbolic {
namespace {

// Domains of hash_words, apart from those of symbolic_ops.cpp.
constexpr std::uint64_t kSegment = 201, kWhole = 202, kCombined = 203, kGivenAway = 204,
                        kMixed = 205;

std::uint64_t word(std::int32_t value) {
  return static_cast<std::uint64_t>(value);
}

}  // namespace

// The first group of its dimension has all ranks that compute together; those that hold copies of
// the same heads have groups of their own behind it.
SegmentedPasses::SegmentedPasses(const Schedule& schedule)
    : places_(static_cast<std::size_t>(world_ranks_of(schedule)), -1),
      first_rank_(schedule.first_rank) {
  for (const Group& group : schedule.groups) {
    if (group.dimension != Dimension::kTensor && group.dimension != Dimension::kContext) continue;
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(group.ranks[i]);
      if (rank >= places_.size() || places_[rank] >= 0) continue;
      places_[rank] = static_cast<std::int32_t>(i);
      group_ranks_ = std::max(group_ranks_, group.ranks.size());
      cuts_sequences_ = group.dimension == Dimension::kContext;
    }
  }
}

std::int32_t SegmentedPasses::place_of(std::int32_t rank) const {
  const auto world = static_cast<std::size_t>(first_rank_ + rank);
  return world < places_.size() ? std::max(places_[world], 0) : 0;
}

// A later segment is known by the inputs of the first, since it reads nothing else but what the
// segments before it left. It must find that in each value, and in some of them the parts of all
// ranks: one collective at least stands between two segments. Values of another pass, of an earlier
// segment, or of too few ranks give the pass a name that no right one has. The last segment names
// the pass by the inputs of all ranks, whatever collectives brought them.
Term SegmentedPasses::advance(const Instruction& instruction, const Term& inputs,
                              const std::vector<Term>& values) {
  const PassId id = id_of(instruction);
  Open& pass = open_[{instruction.rank, id}];
  if (instruction.segments.begin == 0) {
    pass = {inputs, 0, {}};
  } else {
    std::map<std::int32_t, Term> arrived;
    bool mixed = instruction.segments.begin != pass.end;
    for (const Term& value : values) {
      const auto known = values_.find(value);
      if (known == values_.end() || known->second.pass != id || known->second.end != pass.end) {
        mixed = true;
      } else if (known->second.crossed) {
        arrived.insert(known->second.inputs.begin(), known->second.inputs.end());
      }
    }
    mixed = mixed || arrived.size() != group_ranks_;
    if (mixed) pass.inputs = hash_words({kMixed, pass.inputs.low, instruction.id});
    pass.all = std::move(arrived);
  }
  pass.end = instruction.segments.end;
  if (pass.end != SegmentRange().end) {
    return hash_words({kSegment, pass.inputs.low, pass.inputs.high, word(pass.end)});
  }
  TermHash whole;
  whole.add(kWhole);
  whole.add(pass.inputs);
  for (const auto& [place, of_rank] : pass.all) whole.add(of_rank);
  return wholes_[pass.inputs] = whole.value();
}

void SegmentedPasses::note(const Instruction& instruction, const Term& made) {
  const PassId id = id_of(instruction);
  const Open& pass = open_[{instruction.rank, id}];
  values_[made] = {id, pass.end, {{place_of(instruction.rank), pass.inputs}}, false};
}

Term SegmentedPasses::whole_of(const Term& inputs) const {
  const auto known = wholes_.find(inputs);
  return known == wholes_.end() ? inputs : known->second;
}

// Members must bring values of one pass behind one segment. A value that a collective made before
// is not one of them: a sum of sums would count a rank twice.
Term SegmentedPasses::combine(const Instruction& instruction, const std::vector<Term>& terms) {
  TermHash hash;
  hash.add(kCombined);
  hash.add(static_cast<std::uint64_t>(instruction.reduction));
  for (const Term& term : terms) hash.add(term);
  const Term made = hash.value();
  Values values;
  for (const Term& term : terms) {
    const auto known = values_.find(term);
    if (known == values_.end()) return made;
    const Values& one = known->second;
    if (values.inputs.empty()) {
      values.pass = one.pass;
      values.end = one.end;
    }
    // Values of another pass, or that crossed before, are no parts of this one.
    if (one.pass != values.pass || one.end != values.end || one.crossed) return made;
    values.inputs.insert(one.inputs.begin(), one.inputs.end());
  }
  values.crossed = true;
  values_[made] = values;
  return made;
}

// The rank has no use for it, and the next segment may read it as a part of its buffer. So it
// counts as a value that crossed, of no rank.
Term SegmentedPasses::given_away(const Instruction& instruction, const Term& of) {
  const Term made = hash_words({kGivenAway, instruction.id});
  const auto known = values_.find(of);
  if (known != values_.end()) values_[made] = {known->second.pass, known->second.end, {}, true};
  return made;
}

}  // namespace sluice::schedule::symbolic
