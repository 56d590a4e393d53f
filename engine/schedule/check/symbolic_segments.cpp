// The names of values are hashes, and the sources of a hash are kept next to it: the pass, the
// segments that are done, and the inputs of each rank that has a part in it. A value that a
// collective made is known only if all of its members had values of one pass after one segment, so
// that a rank that brings another value, or none, leaves a hash of which nothing is known.
//
// Two things are proved of a ring. Every rank attends to the keys of each rank once: a hop brings
// keys that it has not had. And every value that goes round visits each rank once: keys from their
// own rank to the one in front of it, the gradients of keys from that one home. A hop that is left
// out leaves two segments without a collective between them; one that is done twice makes a value
// that crossed twice; one at the wrong place brings keys a second time, or ends the ring before all
// have been everywhere.
#include "engine/schedule/check/symbolic_segments.hpp"

#include <algorithm>
#include <utility>

namespace sluice::schedule::symbolic {
namespace {

// Domains of hash_words, apart from those of symbolic_ops.cpp.
constexpr std::uint64_t kSegment = 201, kWhole = 202, kCombined = 203, kGivenAway = 204,
                        kMixed = 205;

std::uint64_t word(std::int32_t value) {
  return static_cast<std::uint64_t>(value);
}

}  // namespace

// The largest group of each dimension counts; those that hold copies of the same heads have smaller
// ones. Ranks that any of them joins compute together.
SegmentedPasses::SegmentedPasses(const Schedule& schedule)
    : ranks_(static_cast<std::size_t>(world_ranks_of(schedule))), first_rank_(schedule.first_rank) {
  const auto count = static_cast<std::int32_t>(ranks_.size());
  std::vector<std::vector<std::int32_t>> parts(ranks_.size()), contexts(ranks_.size());
  std::vector<std::int32_t> first(ranks_.size());  // of those that compute together
  for (std::int32_t rank = 0; rank < count; ++rank) first[static_cast<std::size_t>(rank)] = rank;
  for (const Group& group : schedule.groups) {
    if (group.dimension != Dimension::kTensor && group.dimension != Dimension::kContext) continue;
    auto& groups = group.dimension == Dimension::kTensor ? parts : contexts;
    for (const std::int32_t rank : group.ranks) {
      if (rank < 0 || rank >= count) continue;
      auto& of = groups[static_cast<std::size_t>(rank)];
      if (group.ranks.size() > of.size()) of = group.ranks;
      const std::int32_t joined = first[static_cast<std::size_t>(rank)];
      const std::int32_t into = first[static_cast<std::size_t>(group.ranks.front())];
      for (std::int32_t& other : first) {
        if (other == joined || other == into) other = std::min(joined, into);
      }
    }
  }
  const auto number_in = [](const std::vector<std::int32_t>& ranks, std::int32_t rank) {
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    return at == ranks.end() ? 0 : static_cast<std::int32_t>(at - ranks.begin());
  };
  for (std::int32_t rank = 0; rank < count; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const auto self = first.begin() + rank;
    ranks_[at].place = static_cast<std::int32_t>(std::count(first.begin(), self, *self));
    ranks_[at].part = number_in(parts[at], rank);
    ranks_[at].context = number_in(contexts[at], rank);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto places = [&](const std::vector<std::int32_t>& of) {
      Places made;
      for (const std::int32_t other : of)
        made.insert(ranks_[static_cast<std::size_t>(other)].place);
      return made;
    };
    ranks_[rank].parts = places(parts[rank]);
    ranks_[rank].contexts = places(contexts[rank]);
  }
}

// A later segment is known by the inputs of the first, since it reads nothing else but values that
// the segments before it left. It must find that in each value, and in some of them the parts of
// all ranks of a group: one collective at least stands between two segments. Values of another
// pass, of an earlier segment, or of too few ranks give the pass a name that no right one has. The
// last segment names the pass by all inputs that reached it, by any collectives.
Term SegmentedPasses::advance(const Instruction& instruction, const Term& inputs,
                              const std::vector<Term>& values) {
  const PassId id = id_of(instruction);
  const Rank& self = ranks_[world(instruction.rank)];
  Open& pass = open_[{instruction.rank, id}];
  const bool ends = instruction.segments.end == SegmentRange().end;
  bool mixed = false;
  if (instruction.segments.begin == 0) {
    pass = Open{inputs, 0, {{self.place, inputs}}, self.place, {}, {}, nullptr};
  } else {
    mixed = instruction.segments.begin != pass.end || !arrive(self, id, pass, values);
  }
  if (ends) mixed = !end_ring(self, pass) || mixed;
  if (mixed) {
    mixed_.push_back(instruction.id);
    pass.inputs = hash_words({kMixed, pass.inputs.low, instruction.id});
  }
  pass.end = instruction.segments.end;
  pass.made =
      std::make_shared<Made>(Made{id, pass.end, self.place, pass.all, pass.subject, pass.routes});
  if (ends) return name_whole(instruction, pass);
  return hash_words({kSegment, pass.inputs.low, pass.inputs.high, word(pass.end)});
}

// Values of each group come from all of its ranks: a sum from all at once, parts of a gathered or
// exchanged value from each by itself. Two groups may cross at one place, as the head's loss does.
// The inputs of a rank are the same in all values that come from it.
bool SegmentedPasses::arrive(const Rank& self, const PassId& id, Open& pass,
                             const std::vector<Term>& values) {
  std::map<std::int32_t, Places> members;  // by group
  std::map<std::uint64_t, Route> routes;
  for (const Term& value : values) {
    const auto known = values_.find(value);
    if (known == values_.end()) return false;
    const Values& one = known->second;
    if (one.pass != id || one.end != pass.end) return false;
    if (!one.crossed) continue;
    for (const auto& of : one.of) {
      for (const auto& [place, term] : of->inputs) {
        if (pass.all.emplace(place, term).first->second != term) return false;
      }
      if (!one.hops) {
        members[one.group].insert(of->place);
        continue;
      }
      const auto on_way = of->routes.find(*one.hops);
      const Route route =
          on_way == of->routes.end() ? Route{of->subject, {of->place}} : on_way->second;
      if (routes.emplace(*one.hops, route).first->second != route) return false;
    }
  }
  if (members.empty()) return !routes.empty() && hop(self, pass, routes);
  const bool whole = std::all_of(members.begin(), members.end(), [&](const auto& group) {
    return group.second == self.parts || group.second == self.contexts;
  });
  return routes.empty() && whole && end_ring(self, pass);
}

// The values that a hop brings are of the keys of one rank.
bool SegmentedPasses::hop(const Rank& self, Open& pass,
                          const std::map<std::uint64_t, Route>& arrived) {
  pass.subject = arrived.begin()->second.subject;
  bool fresh = pass.attended.insert(pass.subject).second;
  for (const auto& [begin, route] : arrived) {
    Route& own = pass.routes[begin] = route;
    fresh = fresh && route.subject == pass.subject && own.visited.insert(self.place).second;
  }
  return fresh;
}

// A rank attends to its own keys without a hop. Gradients come home to them.
bool SegmentedPasses::end_ring(const Rank& self, Open& pass) {
  if (pass.routes.empty()) return true;
  bool whole = true;
  for (const auto& [begin, route] : pass.routes) {
    whole = whole && route.visited == self.contexts;
  }
  pass.attended.insert(self.place);
  whole = whole && pass.attended == self.contexts;
  pass.routes.clear();
  pass.attended.clear();
  pass.subject = self.place;
  return whole;
}

// A Recompute may leave out cuts. So it knows some of the inputs that its Forward knew, and no
// others.
Term SegmentedPasses::name_whole(const Instruction& instruction, Open& pass) {
  const auto forward = wholes_.find(pass.inputs);
  if (instruction.op == Op::kRecompute && forward != wholes_.end()) {
    const auto& known = forward->second.inputs;
    const bool same = std::all_of(pass.all.begin(), pass.all.end(), [&](const auto& input) {
      const auto at = known.find(input.first);
      return at != known.end() && at->second == input.second;
    });
    return same ? forward->second.term : hash_words({kMixed, pass.inputs.low, instruction.id});
  }
  TermHash whole;
  whole.add(kWhole);
  whole.add(pass.inputs);
  for (const auto& [place, of_rank] : pass.all) whole.add(of_rank);
  wholes_[pass.inputs] = {whole.value(), pass.all};
  return whole.value();
}

void SegmentedPasses::note(const Instruction& instruction, const Term& made) {
  const PassId id = id_of(instruction);
  const Open& pass = open_[{instruction.rank, id}];
  values_[made] = {id, pass.end, {pass.made}, false, -1, std::nullopt};
}

Term SegmentedPasses::whole_of(const Term& inputs) const {
  const auto known = wholes_.find(inputs);
  return known == wholes_.end() ? inputs : known->second.term;
}

// Members must bring values of one pass after one segment. A value that a collective made before
// is not one of them: a sum of sums would count a rank twice, and a second hop would skip one.
Term SegmentedPasses::combine(const Instruction& instruction, const std::vector<Term>& terms,
                              std::uint64_t begin) {
  TermHash hash;
  hash.add(kCombined);
  hash.add(static_cast<std::uint64_t>(instruction.reduction));
  // Several values of one buffer go round a ring.
  if (instruction.reduction == CutKind::kRing) hash.add(begin);
  for (const Term& term : terms) hash.add(term);
  const Term made = hash.value();
  Values values;
  for (const Term& term : terms) {
    const auto known = values_.find(term);
    if (known == values_.end()) return made;
    const Values& one = known->second;
    if (values.of.empty()) {
      values.pass = one.pass;
      values.end = one.end;
    }
    // Values of another pass, or that crossed before, are no parts of this one.
    if (one.pass != values.pass || one.end != values.end || one.crossed) return made;
    values.of.insert(values.of.end(), one.of.begin(), one.of.end());
  }
  values.crossed = true;
  values.group = instruction.group;
  if (instruction.reduction == CutKind::kRing) values.hops = begin;
  values_[made] = values;
  return made;
}

// The rank has no use for it, and the next segment may read it as a part of its buffer. So it
// counts as a value that crossed, of no rank.
Term SegmentedPasses::given_away(const Instruction& instruction, const Term& of) {
  const Term made = hash_words({kGivenAway, instruction.id});
  const auto known = values_.find(of);
  if (known == values_.end()) return made;
  values_[made] = {known->second.pass, known->second.end, {}, true,
                   instruction.group,  std::nullopt};
  return made;
}

}  // namespace sluice::schedule::symbolic
