// The effect of collectives on terms. A Gather or an AllToAll moves them; a reduction of gradients
// adds them by the tree. Between segments a sum is a term of all members' terms, and a part that
// moves is a term of its owner's. Borders of all members' parts, and of the ranks' own parts, cut a
// value into intervals, so that the pieces in which it was written do not show.
#include <algorithm>
#include <set>

#include "engine/schedule/check/symbolic_ops.hpp"

namespace sluice::schedule::symbolic {
namespace {

// The term of bytes [begin, end) of a value, if they have one.
Term term_at(const ReadValue& value, std::uint64_t begin, std::uint64_t end) {
  for (const Part& part : value.parts) {
    if (part.begin <= begin && end <= part.end) return placed_term(*value.buffer, part);
  }
  return hash_words({kAbsent});
}

}  // namespace

void SymbolicOps::cross(const Instruction& instruction, const std::vector<Member>& members,
                        const std::vector<WriteTarget>& writes, const Emit& emit) {
  const std::int32_t self = world_rank_of(schedule_, instruction.rank);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    std::vector<const ReadValue*> values;
    std::size_t own = 0;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (members[m].world_rank == self) own = m;
      const std::vector<ReadValue>& reads = *members[m].reads;
      if (members[m].reduction != instruction.reduction) continue;
      if (i < reads.size() && reads[i].buffer->role == writes[i].buffer->role &&
          reads[i].begin == writes[i].begin && reads[i].end == writes[i].end) {
        values.push_back(&reads[i]);
      }
    }
    if (values.size() != members.size()) {  // the workspace, or another value
      const Term term = hash_words({kScratch + instruction.id, i});
      emit(writes[i], Part{writes[i].begin, writes[i].end, term, writes[i].begin});
    } else if (writes[i].buffer->role == BufferRole::kNormPartial) {
      cross_partials(instruction, values, writes[i], emit);
    } else {
      cross_value(instruction, values, own, writes[i], emit);
    }
  }
}

// The borders of all members' parts, and of the ranks' even parts, cut the value into intervals.
void SymbolicOps::cross_value(const Instruction& instruction,
                              const std::vector<const ReadValue*>& values, std::size_t own,
                              const WriteTarget& target, const Emit& emit) {
  const auto ranks = values.size();
  const std::uint64_t elems = elems_in(instruction.reduced, target.end - target.begin);
  std::set<std::uint64_t> borders{target.begin, target.end};
  std::vector<std::uint64_t> begins;  // of the ranks' parts: the first ones are larger by one
  for (std::uint64_t rank = 0; rank <= ranks; ++rank) {
    const std::uint64_t before =
        rank * (elems / ranks) + std::min<std::uint64_t>(rank, elems % ranks);
    begins.push_back(target.begin + bytes_of(instruction.reduced, before));
    borders.insert(begins.back());
  }
  for (const ReadValue* value : values) {
    for (const Part& part : value->parts) borders.insert({part.begin, part.end});
  }
  const std::uint64_t base = extent_base(*target.buffer);
  for (auto begin = borders.begin(); std::next(begin) != borders.end(); ++begin) {
    const std::uint64_t end = *std::next(begin);
    if (*begin < target.begin || end > target.end) continue;
    const auto owner = static_cast<std::size_t>(
        std::upper_bound(begins.begin(), begins.end(), *begin) - begins.begin() - 1);
    std::vector<Term> terms;
    switch (instruction.reduction) {
      case CutKind::kGather:
        terms = {term_at(*values[owner], *begin, end)};
        break;
      case CutKind::kExchange: {  // the parts are equal; this rank's part of the owner's value
        const std::uint64_t shift = begins[own] - begins[owner];
        terms = {term_at(*values[owner], *begin + shift, end + shift)};
        break;
      }
      case CutKind::kRing:
        terms = {term_at(*values[(own + ranks - 1) % ranks], *begin, end)};
        break;
      default:
        for (const ReadValue* value : values) terms.push_back(term_at(*value, *begin, end));
    }
    const bool given = instruction.reduction == CutKind::kScatter && owner != own;
    const Term made = given ? segments_.given_away(instruction, terms[own])
                            : segments_.combine(instruction, terms, target.begin);
    emit(target, Part{*begin, end, made, base + *begin});
  }
}

// The ranks' pieces of the norm are alike. A sum remembers the gradients of all of them.
void SymbolicOps::cross_partials(const Instruction& instruction,
                                 const std::vector<const ReadValue*>& values,
                                 const WriteTarget& target, const Emit& emit) {
  for (std::size_t piece = 0; piece < values.front()->parts.size(); ++piece) {
    const Part& first = values.front()->parts[piece];
    NormPartial sum;
    sum.bytes = first.end - first.begin;
    std::vector<Term> terms;
    bool whole = true;
    for (const ReadValue* value : values) {
      const Part* part = piece < value->parts.size() ? &value->parts[piece] : nullptr;
      const auto known = part == nullptr ? norm_partials_.end() : norm_partials_.find(part->term);
      whole = whole && known != norm_partials_.end() && part->origin == 0 &&
              part->begin == first.begin && known->second.bytes == sum.bytes;
      if (!whole) break;
      terms.push_back(part->term);
      sum.runs.insert(sum.runs.end(), known->second.runs.begin(), known->second.runs.end());
    }
    const Term made = whole ? segments_.combine(instruction, terms, target.begin)
                            : hash_words({kAbsent, instruction.id, piece});
    if (whole) norm_partials_[made] = std::move(sum);
    emit(target, Part{first.begin, first.end, made, 0});
  }
}

namespace {

// The part of a member's contribution that the k-th write from it takes; null: there is none.
const ReadValue* contribution(const Member& member, std::int32_t to, std::size_t k) {
  for (const ReadValue& read : *member.reads) {
    if (to >= 0 && read.peer != to) continue;
    if (k-- == 0) return &read;
  }
  return nullptr;
}

void move_parts(Op op, std::int32_t self, const std::vector<Member>& members,
                const std::vector<WriteTarget>& writes, const Emit& emit) {
  std::map<std::int32_t, std::size_t> taken;  // by source
  for (const WriteTarget& target : writes) {
    const ReadValue* from = nullptr;
    for (const Member& member : members) {
      if (member.world_rank != target.peer) continue;
      from = contribution(member, op == Op::kAllToAll ? self : -1, taken[target.peer]++);
    }
    if (from != nullptr && from->end - from->begin == target.end - target.begin) {
      SymbolicOps::copy({*from}, {target}, emit);
    } else {
      emit(target, Part{target.begin, target.end, hash_words({kAbsent}), target.begin});
    }
  }
}

// Adds terms [first, last) as a sum of FoldGrad instructions of the unit's gradient would.
Term fold_tree(const std::vector<Term>& terms, std::size_t first, std::size_t last,
               const Buffer& sum) {
  if (last - first == 1) return terms[first];
  std::size_t split = 1;
  while (2 * split < last - first) split *= 2;
  const Term into = fold_tree(terms, first, first + split, sum);
  const Term from = fold_tree(terms, first + split, last, sum);
  TermHash hash;
  hash.add(static_cast<std::uint64_t>(Op::kFoldGrad));
  hash.add(static_cast<std::uint64_t>(sum.unit));
  hash.add(static_cast<std::uint64_t>(sum.kind));
  hash.add(into);
  hash.add(from);
  return hash.value();
}

void reduce(const std::vector<Member>& members, const std::vector<WriteTarget>& writes,
            const Emit& emit) {
  std::vector<std::vector<SymbolicOps::Run>> inputs;
  std::set<std::uint64_t> borders;
  for (const Member& member : members) {
    inputs.emplace_back();
    for (const ReadValue& read : *member.reads) {
      for (const SymbolicOps::Run& run : SymbolicOps::runs_of(read)) {
        inputs.back().push_back(run);
        borders.insert({run.begin, run.end});
      }
    }
  }
  for (const WriteTarget& target : writes) {
    const Buffer& buffer = *target.buffer;
    const std::uint64_t base = extent_base(buffer);
    std::uint64_t begin = elems_in(buffer.dtype, base + target.begin);
    const std::uint64_t stop = elems_in(buffer.dtype, base + target.end);
    while (begin < stop) {
      const auto border = borders.upper_bound(begin);
      const std::uint64_t end = border == borders.end() ? stop : std::min(*border, stop);
      std::vector<Term> terms(inputs.size(), hash_words({kAbsent}));
      for (std::size_t m = 0; m < inputs.size(); ++m) {
        for (const SymbolicOps::Run& run : inputs[m]) {
          if (run.begin <= begin && end <= run.end) terms[m] = run.term;
        }
      }
      const std::uint64_t origin = bytes_of(buffer.dtype, begin);
      emit(target, Part{origin - base, bytes_of(buffer.dtype, end) - base,
                        fold_tree(terms, 0, terms.size(), buffer), origin});
      begin = end;
    }
  }
}

}  // namespace

void exchange(Op op, std::int32_t self, const std::vector<Member>& members,
              const std::vector<WriteTarget>& writes, const Emit& emit) {
  if (op == Op::kGather || op == Op::kAllToAll) {
    move_parts(op, self, members, writes, emit);
  } else {
    reduce(members, writes, emit);
  }
}

}  // namespace sluice::schedule::symbolic
