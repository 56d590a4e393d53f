// Each op has its rule here. It hashes the terms that it reads, together with its own name, into
// the terms that it writes. Elementwise ops work on runs of elements and keep them apart, so that
// the cut into pieces does not show. Reductions and passes reduce all their input to one term.
#include "engine/schedule/check/symbolic_ops.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace sluice::schedule::symbolic {
namespace {

// Domains of hash_words, apart from ops and those of the header.
constexpr std::uint64_t kMoved = 101, kPartial = 103, kFolded = 104, kSlice = 106, kOne = 107,
                        kWrongSources = 108, kDiffers = 109;

std::uint64_t word(std::int32_t value) {
  return static_cast<std::uint64_t>(value);
}

// One read as a single term, for ops that take it as a whole.
Term whole_term(const ReadValue& read) {
  const Buffer& buffer = *read.buffer;
  const bool state = buffer.role == BufferRole::kState;
  const bool all = read.begin == 0 && read.end == buffer.bytes;
  if (!state && all && read.parts.size() == 1) return placed_term(buffer, read.parts[0]);
  const DType counted = state ? buffer.dtype : DType::kU8;
  TermHash hash;
  hash.add(kSlice);
  for (const Part& part : read.parts) {
    hash.add(placed_term(buffer, part));
    hash.add(elems_in(counted, extent_base(buffer) + part.begin));
    hash.add(elems_in(counted, extent_base(buffer) + part.end));
  }
  return hash.value();
}

// Ops with the same arithmetic hash to the same word.
std::uint64_t op_word(Op op) {
  // A Recompute makes the terms of its Forward; a head's Loss is its forward pass.
  if (op == Op::kRecompute || op == Op::kLoss) op = Op::kForward;
  return static_cast<std::uint64_t>(op);
}

bool is_copy_op(Op op) {
  switch (op) {
    case Op::kUpload:
    case Op::kDownload:
    case Op::kStorageRead:
    case Op::kStorageWrite:
    case Op::kSpillActivation:
    case Op::kFetchActivation:
    case Op::kRecvForward:
    case Op::kRecvBackward:
      return true;
    default:
      return false;
  }
}

// Order in which an elementwise op combines its inputs: by state kind; a sum before its addend.
std::vector<const ReadValue*> in_canonical_order(const std::vector<ReadValue>& reads) {
  std::vector<const ReadValue*> order;
  for (const ReadValue& read : reads) order.push_back(&read);
  std::stable_sort(order.begin(), order.end(), [](const ReadValue* a, const ReadValue* b) {
    const auto key = [](const ReadValue* read) {
      return std::tuple(read->buffer->role, read->buffer->kind, !read->in_place);
    };
    return key(a) < key(b);
  });
  return order;
}

// A factor of one changes nothing that is multiplied by it.
bool is_one(const ReadValue& read) {
  return read.buffer->role == BufferRole::kScalar && read.parts.size() == 1 &&
         placed_term(*read.buffer, read.parts[0]) == hash_words({kOne});
}

// The term of one output of a pass.
Term made_term(const Term& inputs, std::uint64_t domain, BufferRole role, StateKind kind,
               std::uint64_t number) {
  return hash_words({inputs.low, inputs.high, domain, static_cast<std::uint64_t>(role),
                     static_cast<std::uint64_t>(kind), number});
}
// The term of the values that a forward pass with these inputs saves.
Term saved_term(const Term& inputs) {
  return made_term(inputs, 0, BufferRole::kSaved, StateKind::kNone, 0);
}

// Whether an update works on state of whole tensors.
bool of_whole_tensors(const std::vector<ReadValue>& reads, const std::vector<WriteTarget>& writes) {
  const auto per_tensor = [](const auto& value) { return value.buffer->per_tensor; };
  return std::any_of(reads.begin(), reads.end(), per_tensor) ||
         std::any_of(writes.begin(), writes.end(), per_tensor);
}

}  // namespace

std::uint64_t extent_base(const Buffer& buffer) {
  const bool part = buffer.role == BufferRole::kState || buffer.role == BufferRole::kSaved;
  return part ? bytes_of(buffer.dtype, buffer.first_elem) : 0;
}

Term placed_term(const Buffer& buffer, const Part& part) {
  const std::uint64_t home = extent_base(buffer) + part.begin;
  if (part.origin == home) return part.term;
  return hash_words({kMoved, part.term.low, part.term.high, part.origin - home});
}

void SymbolicOps::apply(const Instruction& instruction, const std::vector<ReadValue>& reads,
                        const std::vector<WriteTarget>& writes, const Emit& emit) {
  if (is_copy_op(instruction.op)) {
    copy(reads, writes, emit);
    return;
  }
  switch (instruction.op) {
    case Op::kAccumulateGrad:
    case Op::kFoldGrad:
    case Op::kRoundGrad:
      elementwise(instruction, reads, writes, emit);
      break;
    case Op::kOptimizerStep:
      if (!schedule_.tensor_borders.empty() || of_whole_tensors(reads, writes)) {
        update_whole(instruction, reads, writes, emit);
      } else {
        elementwise(instruction, reads, writes, emit);
      }
      break;
    case Op::kGradNorm:
      grad_norm(reads, writes, emit);
      break;
    case Op::kClipFactor:
      clip_factor(instruction, reads, writes, emit);
      break;
    case Op::kForward:
    case Op::kRecompute:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kLoss:
    case Op::kExternal:
      compute(instruction, reads, writes, emit);
      break;
    default:  // sends, collectives (exchange), control
      break;
  }
}

// Copies are laid out like a stream of bytes: a part may fill several targets, and several parts
// one target. Terms keep their origin, so a misplaced part is noticed when it is read.
void SymbolicOps::copy(const std::vector<ReadValue>& reads, const std::vector<WriteTarget>& writes,
                       const Emit& emit) {
  std::size_t at = 0;        // write
  std::uint64_t filled = 0;  // bytes of it
  for (const ReadValue& read : reads) {
    for (const Part& part : read.parts) {
      std::uint64_t taken = 0;
      while (taken < part.end - part.begin && at < writes.size()) {
        const WriteTarget& target = writes[at];
        const std::uint64_t room = target.end - target.begin - filled;
        const std::uint64_t bytes = std::min(room, part.end - part.begin - taken);
        emit(target, Part{target.begin + filled, target.begin + filled + bytes, part.term,
                          part.origin + taken});
        taken += bytes;
        filled += bytes;
        if (filled == target.end - target.begin) {
          ++at;
          filled = 0;
        }
      }
    }
  }
}

std::vector<SymbolicOps::Run> SymbolicOps::runs_of(const ReadValue& read) {
  std::vector<Run> runs;
  const Buffer& buffer = *read.buffer;
  for (const Part& part : read.parts) {
    runs.push_back({buffer.unit, elems_in(buffer.dtype, extent_base(buffer) + part.begin),
                    elems_in(buffer.dtype, extent_base(buffer) + part.end),
                    placed_term(buffer, part)});
  }
  return runs;
}

// Sorted and merged runs have one hash for one content, whatever the pieces it came in. Elements
// may have several terms: those of ranks that hold other parts of the unit.
Term SymbolicOps::fold(std::vector<Run> runs) {
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::tie(a.unit, a.term, a.begin, a.end) < std::tie(b.unit, b.term, b.begin, b.end);
  });
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  std::vector<Run> merged;
  for (const Run& run : runs) {
    if (!merged.empty() && merged.back().unit == run.unit && merged.back().end == run.begin &&
        merged.back().term == run.term) {
      merged.back().end = run.end;
    } else {
      merged.push_back(run);
    }
  }
  TermHash hash;
  hash.add(kFolded);
  for (const Run& run : merged) {
    hash.add(word(run.unit));
    hash.add(run.begin);
    hash.add(run.end);
    hash.add(run.term);
  }
  return hash.value();
}

// Borders of all inputs cut the output into intervals with constant input terms. Each interval gets
// one term that does not depend on how the op itself was cut into pieces.
void SymbolicOps::elementwise(const Instruction& instruction, const std::vector<ReadValue>& reads,
                              const std::vector<WriteTarget>& writes, const Emit& emit) {
  struct Input {
    const ReadValue* read;
    std::vector<Run> runs;  // empty: a scalar
    Term scalar;
  };
  std::vector<Input> inputs;
  std::set<std::uint64_t> borders;
  for (const ReadValue* read : in_canonical_order(reads)) {
    if (is_one(*read)) continue;
    Input input{read, {}, {}};
    if (read->buffer->role == BufferRole::kState) {
      input.runs = runs_of(*read);
    } else {
      input.scalar = whole_term(*read);
    }
    for (const Run& run : input.runs) borders.insert({run.begin, run.end});
    inputs.push_back(std::move(input));
  }
  for (const WriteTarget& target : writes) {
    const Buffer& buffer = *target.buffer;
    const std::uint64_t base = extent_base(buffer);
    std::uint64_t begin = elems_in(buffer.dtype, base + target.begin);
    const std::uint64_t stop = elems_in(buffer.dtype, base + target.end);
    while (begin < stop) {
      const auto border = borders.upper_bound(begin);
      const std::uint64_t end = border == borders.end() ? stop : std::min(*border, stop);
      TermHash hash;
      Term only{};
      hash.add(op_word(instruction.op));
      hash.add(word(instruction.unit));
      hash.add(static_cast<std::uint64_t>(buffer.kind));
      for (const Input& input : inputs) {
        Term term = input.runs.empty() ? input.scalar : hash_words({kAbsent});
        for (const Run& run : input.runs) {
          if (run.begin <= begin && end <= run.end) only = term = run.term;
        }
        hash.add(term);
      }
      const Term made = instruction.op == Op::kRoundGrad ? only : hash.value();
      const std::uint64_t origin = bytes_of(buffer.dtype, begin);
      emit(target, Part{origin - base, bytes_of(buffer.dtype, end) - base, made, origin});
      begin = end;
    }
  }
}

// Without borders the unit is one tensor, which begins at its first element and ends after all.
std::vector<SymbolicOps::Tensor> SymbolicOps::tensors_of(std::int32_t unit) const {
  constexpr std::uint64_t kEnd = std::uint64_t{1} << 60;
  const auto at = static_cast<std::size_t>(unit);
  if (at >= schedule_.tensor_borders.size() || schedule_.tensor_borders[at].size() < 2) {
    return {{{0, 0}, {kEnd, kEnd}}};
  }
  std::vector<Tensor> tensors;
  const std::vector<TensorBorder>& borders = schedule_.tensor_borders[at];
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    tensors.emplace_back(borders[i], borders[i + 1]);
  }
  return tensors;
}

ElemRange SymbolicOps::range_of(const Tensor& tensor, const Buffer& buffer) {
  const ElemRange wanted = buffer.per_tensor ? ElemRange{tensor.first.sum, tensor.second.sum}
                                             : ElemRange{tensor.first.elem, tensor.second.elem};
  const std::uint64_t end = buffer.first_elem + buffer.elems;
  return {std::clamp(wanted.begin, buffer.first_elem, end),
          std::clamp(wanted.end, buffer.first_elem, end)};
}

// Ops on whole tensors: each result depends on all of its tensor in every input, and of no other.
void SymbolicOps::update_whole(const Instruction& instruction, const std::vector<ReadValue>& reads,
                               const std::vector<WriteTarget>& writes, const Emit& emit) const {
  for (const Tensor& tensor : tensors_of(instruction.unit)) {
    TermHash hash;
    hash.add(op_word(instruction.op));
    hash.add(word(instruction.unit));
    for (const ReadValue* read : in_canonical_order(reads)) {
      if (is_one(*read)) continue;
      if (read->buffer->role != BufferRole::kState) {
        hash.add(whole_term(*read));
        continue;
      }
      const ElemRange range = range_of(tensor, *read->buffer);
      std::vector<Run> runs;
      for (Run run : runs_of(*read)) {
        run.begin = std::max(run.begin, range.begin);
        run.end = std::min(run.end, range.end);
        if (run.begin < run.end) runs.push_back(run);
      }
      // A tensor without sums has none in its shard either.
      if (!runs.empty()) hash.add(fold(std::move(runs)));
    }
    const Term inputs = hash.value();
    for (const WriteTarget& target : writes) {
      const Buffer& buffer = *target.buffer;
      const bool scratch = buffer.role == BufferRole::kWorkspace;
      const std::uint64_t made =
          scratch ? kScratch + instruction.id : static_cast<std::uint64_t>(buffer.kind);
      const Term term = hash_words({inputs.low, inputs.high, made});
      const std::uint64_t base = extent_base(buffer);
      std::uint64_t begin = target.begin;
      std::uint64_t end = target.end;
      if (!scratch) {
        const ElemRange range = range_of(tensor, buffer);
        begin = std::max(begin, bytes_of(buffer.dtype, range.begin) - base);
        end = std::min(end, bytes_of(buffer.dtype, range.end) - base);
      }
      if (begin < end) emit(target, Part{begin, end, term, base + begin});
    }
  }
}

// Whether a Recompute makes the values that the forward pass of the same inputs saved: it reads all
// saved parts that those which it writes are made from, and they hold what that pass saved.
bool SymbolicOps::makes_forward_values(const Instruction& instruction,
                                       const std::vector<ReadValue>& reads,
                                       const Term& forward) const {
  const auto unit = static_cast<std::size_t>(instruction.unit);
  if (unit >= schedule_.saved_parts.size()) return true;
  const std::vector<SavedPart>& parts = schedule_.saved_parts[unit];
  PartMask found = kUnitInput;  // the hash of the inputs covers it
  for (const ReadValue& read : reads) {
    if (read.buffer->role != BufferRole::kSaved) continue;
    for (const Part& part : read.parts) {
      if (placed_term(*read.buffer, part) != forward) return false;
    }
    const std::uint64_t base = extent_base(*read.buffer);
    found |= parts_within(parts, base + read.begin, base + read.end);
  }
  return (sources_of(parts, saved_parts_written(schedule_, instruction, parts)) & ~found) == 0;
}

// The term of each output names the pass, its inputs and the output's role. Workspace is scratch:
// its term is unique to the instruction, so nothing else may depend on it.
void SymbolicOps::compute(const Instruction& instruction, const std::vector<ReadValue>& reads,
                          const std::vector<WriteTarget>& writes, const Emit& emit) {
  TermHash hash;
  hash.add(op_word(instruction.op));
  hash.add(word(instruction.unit));
  hash.add(word(instruction.layer));
  hash.add(word(instruction.microbatch));
  // Each rank of a context group passes through its own rows.
  hash.add(word(segments_.context_of(instruction.rank)));
  const bool first = instruction.segments.begin == 0;
  const bool whole = first && instruction.segments.end == SegmentRange().end;
  // Saved values count as one input, whatever their cut. A Recompute reads some of those that it
  // makes the others from; they are no input of the forward pass that it repeats.
  const bool repeats = instruction.op == Op::kRecompute;
  std::vector<Run> saved;
  std::vector<Term> left;  // by the segments before
  for (const ReadValue& read : reads) {
    if (!first) {
      if (!read.in_place) continue;
      for (const Part& part : read.parts) left.push_back(placed_term(*read.buffer, part));
    } else if (read.buffer->role == BufferRole::kSaved) {
      if (repeats) continue;
      const std::vector<Run> runs = runs_of(read);
      saved.insert(saved.end(), runs.begin(), runs.end());
    } else if (read.buffer->role != BufferRole::kWorkspace) {
      hash.add(whole_term(read));
    }
  }
  if (!saved.empty()) hash.add(fold(std::move(saved)));
  Term inputs = hash.value();
  const Term named = segments_.whole_of(inputs);
  if (repeats && first && !makes_forward_values(instruction, reads, saved_term(named))) {
    inputs = hash_words({kWrongSources, inputs.low, inputs.high});
  }
  if (!whole) {
    inputs = segments_.advance(instruction, inputs, left);
  } else if (repeats) {
    inputs = segments_.whole_of(inputs);
  }
  const bool ends = instruction.segments.end == SegmentRange().end;
  std::map<BufferRole, std::uint64_t> made;  // outputs so far, by role
  for (const WriteTarget& target : writes) {
    const Buffer& buffer = *target.buffer;
    const bool state = buffer.role == BufferRole::kState;
    const bool saves = buffer.role == BufferRole::kSaved;
    const std::uint64_t number = state ? word(buffer.unit) : saves ? 0 : made[buffer.role]++;
    const std::uint64_t domain =
        ends && buffer.role == BufferRole::kWorkspace ? kScratch + instruction.id : 0;
    const Term term = made_term(inputs, domain, buffer.role, buffer.kind, number);
    if (!ends) segments_.note(instruction, term);
    emit(target, Part{target.begin, target.end, term, extent_base(buffer) + target.begin});
    if (buffer.role == BufferRole::kLoss) losses_[buffer.microbatch] = term;
  }
}

// A partial remembers the gradient elements that it was taken of, for clip_factor().
void SymbolicOps::grad_norm(const std::vector<ReadValue>& reads,
                            const std::vector<WriteTarget>& writes, const Emit& emit) {
  NormPartial partial;
  for (const ReadValue& read : reads) {
    for (const Run& run : runs_of(read)) partial.runs.push_back(run);
  }
  const Term folded = fold(partial.runs);
  for (const WriteTarget& target : writes) {
    partial.bytes = target.end - target.begin;
    const Term term = hash_words({kPartial, folded.low, folded.high, partial.bytes});
    norm_partials_[term] = partial;
    emit(target, Part{target.begin, target.end, term, 0});
  }
}

std::optional<Term> SymbolicOps::norm() const {
  if (norms_.size() == 1) return norms_.begin()->second;
  if (norms_.empty()) return std::nullopt;
  TermHash hash;
  for (const auto& [update, norm] : norms_) {
    hash.add(word(update));
    hash.add(norm);
  }
  return hash.value();
}

// The norm depends on the set of gradient elements under all partials, not on their cut. Bytes that
// are no whole partial make it a different norm.
void SymbolicOps::clip_factor(const Instruction& instruction, const std::vector<ReadValue>& reads,
                              const std::vector<WriteTarget>& writes, const Emit& emit) {
  std::vector<Run> runs;
  TermHash odd;  // parts that are no whole partial
  for (const ReadValue& read : reads) {
    for (const Part& part : read.parts) {
      const auto partial = norm_partials_.find(part.term);
      if (partial != norm_partials_.end() && part.origin == 0 &&
          partial->second.bytes == part.end - part.begin) {
        runs.insert(runs.end(), partial->second.runs.begin(), partial->second.runs.end());
      } else {
        odd.add(part.term);
        odd.add(part.origin);
        odd.add(part.end - part.begin);
      }
    }
  }
  const Term folded = fold(std::move(runs));
  const Term norm = hash_words({folded.low, folded.high, odd.value().low, odd.value().high});
  // Every rank adds all partials, so their norms are one value.
  const auto [known, fresh] = norms_.try_emplace(instruction.update, norm);
  if (!fresh && known->second != norm) {
    known->second = hash_words({kDiffers, known->second.low, norm.low});
  }
  const Term factor = clip_accepted_ ? hash_words({kOne}) : norm;
  for (const WriteTarget& target : writes) {
    emit(target, Part{target.begin, target.end, factor, target.begin});
  }
}

}  // namespace sluice::schedule::symbolic
