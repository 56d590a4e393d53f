// Part of validate: whether the uses of an op fit each other and the op.
//
// A schedule that satisfies all orders may still read the wrong buffer. These rules need no model:
// the two ends of a copy correspond; values that a unit or micro-batch made serve that unit or
// micro-batch; every pass over a unit reads the same weights and inputs as its forward pass. One
// walk over the list checks them, after a first walk has noted the layout of all saved values.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

class MeaningCheck {
 public:
  MeaningCheck(const Schedule& schedule, Problems& problems)
      : schedule_(schedule), problems_(problems) {}

  void run() {
    check_declared_commit();
    note_saved();
    for (const Instruction& instruction : schedule_.instructions) {
      if (problems_.full()) return;
      if (instruction.op == Op::kRelease) continue;
      check_microbatch(instruction);
      if (is_copy(instruction.op)) check_copy(instruction);
      const bool moves = is_copy(instruction.op) || is_send(instruction.op);
      if (moves || is_collective(instruction.op)) check_unit(instruction);
      if (is_compute(instruction.op)) {
        check_compute(instruction);
        check_segments(instruction);
      }
      if (instruction.lane == Lane::kInner) note_reduction(instruction);
      check_saved(instruction);
      switch (instruction.op) {
        case Op::kAccumulateGrad:
        case Op::kFoldGrad:
        case Op::kRoundGrad:
        case Op::kGradNorm:
        case Op::kOptimizerStep:
          check_update(instruction);
          break;
        default:
          break;
      }
    }
  }

 private:
  const Buffer& buffer_of(const Use& use) const { return schedule_.buffers[use.buffer]; }
  static bool is_state(const Buffer& buffer) { return buffer.role == BufferRole::kState; }
  ElemRange elems_of(const Use& use) const {
    return sluice::schedule::elems_of(buffer_of(use), use);
  }

  // A commit names all state that the step finds, in homes of the same elements.
  void check_declared_commit() {
    if (schedule_.commit.empty()) return;
    std::map<std::tuple<std::int32_t, StateKind, std::int32_t>, std::pair<ElemRange, std::int32_t>>
        found;
    const auto key = [&](const Residency& residency) {
      return std::tuple(schedule_.buffers[residency.home].rank, residency.kind, residency.unit);
    };
    const auto value = [&](const Residency& residency) {
      const Buffer& home = schedule_.buffers[residency.home];
      return std::pair(ElemRange{home.first_elem, home.first_elem + home.elems}, residency.version);
    };
    for (const Residency& residency : schedule_.entry) found[key(residency)] = value(residency);
    for (const Residency& residency : schedule_.commit) {
      const auto at = found.find(key(residency));
      if (at == found.end() || at->second != value(residency)) break;
      found.erase(at);
    }
    if (found.empty() && schedule_.commit.size() == schedule_.entry.size()) return;
    problems_.add("what is declared to be committed is not the state that the schedule finds");
  }

  // Values of a micro-batch serve that micro-batch only.
  void check_microbatch(const Instruction& instruction) {
    if (instruction.microbatch < 0) return;
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const Use& use : *uses) {
        const Buffer& buffer = buffer_of(use);
        if (is_state(buffer) || buffer.microbatch < 0 ||
            buffer.microbatch == instruction.microbatch) {
          continue;
        }
        problems_.add(describe(instruction) + " uses " + describe(buffer) + " of micro-batch " +
                      std::to_string(buffer.microbatch));
      }
    }
  }

  // For a value in pieces: the bytes before the range.
  static std::uint64_t bytes_before(const Buffer& buffer, const ByteRange& range) {
    return sluice::bytes_of(buffer.dtype, buffer.first_elem) + range.begin;
  }

  // The ends of a copy hold the same part of the same value. State corresponds by kind, unit, dtype
  // and elements; other values correspond by role, micro-batch and position.
  void check_copy(const Instruction& instruction) {
    if (instruction.reads.size() != instruction.writes.size()) {
      problems_.add(describe(instruction) + " copies to another number of places than from");
      return;
    }
    for (std::size_t k = 0; k < instruction.reads.size(); ++k) {
      const Use& from_use = instruction.reads[k];
      const Use& to_use = instruction.writes[k];
      const Buffer& from = buffer_of(from_use);
      const Buffer& to = buffer_of(to_use);
      const ByteRange source = bytes_of(from_use, from);
      const ByteRange target = bytes_of(to_use, to);
      bool like = source.end - source.begin == target.end - target.begin && from.role == to.role;
      if (is_state(from)) {
        like = like && from.kind == to.kind && from.unit == to.unit && from.dtype == to.dtype &&
               elems_of(from_use) == elems_of(to_use);
      } else {
        const bool same_place = from.role == BufferRole::kNormPartial ||  // a unit's among all
                                bytes_before(from, source) == bytes_before(to, target);
        like = like && from.microbatch == to.microbatch && same_place;
      }
      if (like) continue;
      problems_.add(describe(instruction) + " copies " + describe(from) + " to " + describe(to) +
                    ", which do not correspond");
    }
  }

  // A transfer that belongs to a unit moves only that unit's buffers.
  void check_unit(const Instruction& instruction) {
    if (instruction.unit < 0) return;
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.unit < 0 || buffer.unit == instruction.unit) continue;
      problems_.add(describe(instruction) + " moves " + describe(buffer));
    }
  }

  // The units that an instruction reads weights and outputs of.
  struct Sources {
    std::vector<std::int32_t> weights;
    std::vector<std::int32_t> inputs;
  };
  static bool within(const std::vector<std::int32_t>& part, const std::vector<std::int32_t>& all) {
    return std::includes(all.begin(), all.end(), part.begin(), part.end());
  }

  // The first pass over a unit fixes its weights and inputs. Later passes may read fewer of them
  // but no others. A pass also reads only its own saved values, context and output gradient.
  void check_compute(const Instruction& instruction) {
    if (instruction.unit < 0 || instruction.op == Op::kExternal) return;
    Sources sources;
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.role == BufferRole::kActivation) sources.inputs.push_back(buffer.unit);
      if (is_state(buffer)) sources.weights.push_back(buffer.unit);
      const bool own = buffer.role == BufferRole::kSaved ||
                       buffer.role == BufferRole::kWeightContext ||
                       buffer.role == BufferRole::kGradOut;
      if ((own && buffer.unit >= 0 && buffer.unit != instruction.unit) ||
          (is_state(buffer) && buffer.kind != StateKind::kWeight)) {
        problems_.add(describe(instruction) + " reads " + describe(buffer));
      }
    }
    std::sort(sources.inputs.begin(), sources.inputs.end());
    std::sort(sources.weights.begin(), sources.weights.end());
    const bool forward = instruction.op == Op::kForward || instruction.op == Op::kLoss;
    const auto key = std::tuple(instruction.rank, instruction.unit, instruction.layer);
    const auto [at, fresh] = forward_.try_emplace(key, sources);
    const Sources& first = at->second;
    bool consistent =
        within(sources.inputs, first.inputs) && within(sources.weights, first.weights);
    if (forward)
      consistent = consistent && sources.inputs == first.inputs && sources.weights == first.weights;
    if (!sources.weights.empty()) {
      consistent = consistent && std::binary_search(sources.weights.begin(), sources.weights.end(),
                                                    instruction.unit);
    }
    if (!consistent) {
      problems_.add(describe(instruction) +
                    " reads weights or inputs of other units than the unit's first pass");
    }
  }

  // The segments of a pass follow each other, and a reduction stands between two of them. A pass
  // that is cut begins with its first segment.
  void check_segments(const Instruction& instruction) {
    const SegmentRange& own = instruction.segments;
    CutPass& pass = cut_[{instruction.rank, instruction.unit, instruction.microbatch}];
    const bool goes_on = own.begin > 0 && pass.op == instruction.op && pass.end == own.begin &&
                         pass.reduced && !instruction.writes.empty();
    if (own.begin > 0 && !goes_on) {
      problems_.add(describe(instruction) + " begins at segment " + std::to_string(own.begin) +
                    (pass.op == instruction.op && pass.end == own.begin
                         ? " and no reduction stands before it"
                         : ", which does not follow the segments before it"));
    }
    if (own.begin == 0 && pass.is_open()) {
      problems_.add(describe(instruction) + " comes before all segments of " +
                    std::string(op_name(pass.op)) + " have run");
    }
    pass = {instruction.op, own.end, false};
  }
  void note_reduction(const Instruction& instruction) {
    const auto pass = cut_.find({instruction.rank, instruction.unit, instruction.microbatch});
    if (pass != cut_.end()) pass->second.reduced = true;
  }

  // Ranges of the saved values of one unit and micro-batch: disjoint, ascending, none adjacent.
  using Ranges = std::map<std::uint64_t, std::uint64_t>;
  // Merges the range with all ranges that it touches.
  static void add_range(Ranges& ranges, std::uint64_t begin, std::uint64_t end) {
    auto at = ranges.upper_bound(begin);
    if (at != ranges.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = ranges.erase(at);
    }
    ranges[begin] = end;
  }
  using SavedKey = std::tuple<std::int32_t, std::int32_t, std::int32_t, Op>;
  // Whether this half of backward reads the buffer.
  static bool serves(const Buffer& buffer, Op pass) {
    return buffer.used_by == SavedFor::kBoth ||
           (buffer.used_by == SavedFor::kBackwardInput) == (pass == Op::kBackwardInput);
  }

  // The saved ranges that each half of backward has to read, as the buffers declare them.
  void note_saved() {
    for (const Buffer& buffer : schedule_.buffers) {
      if (buffer.role != BufferRole::kSaved) continue;
      for (const Op pass : {Op::kBackwardInput, Op::kBackwardWeight}) {
        if (!serves(buffer, pass)) continue;
        add_range(saved_for_[{buffer.rank, buffer.unit, buffer.microbatch, pass}],
                  buffer.first_elem, buffer.first_elem + buffer.bytes);
      }
    }
  }

  // A pass reads all its saved ranges, and none that only the other half needs.
  void check_saved(const Instruction& instruction) {
    if (instruction.op == Op::kRecompute) return check_remade(instruction);
    if (instruction.op != Op::kBackwardInput && instruction.op != Op::kBackwardWeight) return;
    Ranges read;
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.role != BufferRole::kSaved) continue;
      const ByteRange range = bytes_of(use, buffer);
      add_range(read, buffer.first_elem + range.begin, buffer.first_elem + range.end);
    }
    const auto needed = saved_for_.find(
        {instruction.rank, instruction.unit, instruction.microbatch, instruction.op});
    if (needed == saved_for_.end() ? read.empty() : read == needed->second) return;
    problems_.add(describe(instruction) + " does not read what its unit saved for it");
  }

  // A Recompute makes whole parts, together with those that the same operations make, and reads the
  // kept parts that they are made from.
  void check_remade(const Instruction& instruction) {
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (instruction.unit < 0 || unit >= schedule_.saved_parts.size()) return;
    const std::vector<SavedPart>& parts = schedule_.saved_parts[unit];
    if (parts.empty()) return;
    std::uint64_t written_bytes = 0;
    for (const Use& use : instruction.writes) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.role != BufferRole::kSaved) continue;
      const ByteRange range = bytes_of(use, buffer);
      written_bytes += range.end - range.begin;
    }
    const PartMask written = saved_parts_written(schedule_, instruction, parts);
    if (!can_be_remade(parts, written) || bytes_of_parts(parts, written) != written_bytes) {
      problems_.add(describe(instruction) + " makes parts that cannot be made again alone");
      return;
    }
    Ranges read;
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.role != BufferRole::kSaved) continue;
      const ByteRange range = bytes_of(use, buffer);
      add_range(read, buffer.first_elem + range.begin, buffer.first_elem + range.end);
    }
    PartMask found = kUnitInput;
    for (const auto& [begin, end] : read) found |= parts_within(parts, begin, end);
    if ((sources_of(parts, written) & ~found) == 0) return;
    problems_.add(describe(instruction) + " does not read the parts that it makes others from");
  }

  // Updates: one unit, one range of elements, no kind twice; per-tensor state is used whole.
  void check_update(const Instruction& instruction) {
    std::vector<ElemRange> ranges;
    bool one_range = true;
    bool own_unit = true;
    std::array<int, kStateKindCount + 1> read{};
    std::array<int, kStateKindCount + 1> written{};
    for (const bool writes : {false, true}) {
      for (const Use& use : writes ? instruction.writes : instruction.reads) {
        const Buffer& buffer = buffer_of(use);
        if (!is_state(buffer)) continue;
        ++(writes ? written : read)[static_cast<std::size_t>(buffer.kind)];
        const bool fold_source = instruction.op == Op::kFoldGrad && !writes;
        own_unit = own_unit && (fold_source || buffer.unit == instruction.unit);
        if (buffer.per_tensor) {
          one_range = one_range && covers_all(buffer, use);
          continue;
        }
        ranges.push_back(elems_of(use));
        one_range = one_range && (ranges.back() == ranges.front());
      }
    }
    const auto gradients = read[static_cast<std::size_t>(StateKind::kGradient)];
    bool kinds = true;
    if (instruction.op == Op::kOptimizerStep) {
      kinds = gradients == 1 &&
              std::all_of(read.begin(), read.end(), [](int n) { return n < 2; }) &&
              std::all_of(written.begin(), written.end(), [](int n) { return n < 2; });
    } else {
      for (std::size_t kind = 0; kind < read.size(); ++kind) {
        const bool gradient = kind == static_cast<std::size_t>(StateKind::kGradient);
        kinds = kinds && (gradient || (read[kind] == 0 && written[kind] == 0));
      }
    }
    if (instruction.op == Op::kOptimizerStep) check_tensors(instruction, ranges);
    if (instruction.op == Op::kFoldGrad) kinds = kinds && gradients == 2 && folds_two(instruction);
    if (one_range && own_unit && kinds) return;
    problems_.add(describe(instruction) + " mixes units, kinds or element ranges");
  }

  // An update of a rule that needs whole tensors begins and ends at borders of tensors, and has all
  // sums of the tensors between them. ranges: of the state that it uses, all alike.
  void check_tensors(const Instruction& instruction, const std::vector<ElemRange>& ranges) {
    const auto unit = static_cast<std::size_t>(instruction.unit);
    if (instruction.unit < 0 || unit >= schedule_.tensor_borders.size() || ranges.empty()) return;
    const std::vector<TensorBorder>& borders = schedule_.tensor_borders[unit];
    if (borders.empty()) return;
    const auto border_at = [&](std::uint64_t elem) {
      return std::find_if(borders.begin(), borders.end(),
                          [&](const TensorBorder& border) { return border.elem == elem; });
    };
    const auto first = border_at(ranges.front().begin);
    const auto last = border_at(ranges.front().end);
    bool whole = first != borders.end() && last != borders.end();
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      ElemRange sums;
      for (const Use& use : *uses) {
        if (is_state(buffer_of(use)) && buffer_of(use).per_tensor) sums = elems_of(use);
      }
      whole = whole && (sums.elems() == 0 ? first->sum == last->sum
                                          : sums == ElemRange{first->sum, last->sum});
    }
    if (!whole) problems_.add(describe(instruction) + " updates a part of a tensor");
  }

  // Whether the use covers all of a per-tensor buffer.
  static bool covers_all(const Buffer& buffer, const Use& use) {
    return sluice::schedule::elems_of(buffer, use) ==
           ElemRange{buffer.first_elem, buffer.first_elem + buffer.elems};
  }

  // A reduction adds another unit's gradient, or that of another accumulation group, to the one
  // that it writes.
  bool folds_two(const Instruction& instruction) const {
    int own = 0;
    for (const Use& use : instruction.reads) {
      if (is_state(buffer_of(use)) && buffer_of(use).unit == instruction.unit) ++own;
    }
    return own == 1 || own == 2;
  }

  // How far the last pass of a unit and micro-batch has come.
  struct CutPass {
    Op op = Op::kForward;
    std::int32_t end = SegmentRange().end;
    bool reduced = false;  // since
    // Whether segments are left. A last one whose output is reduced leaves none.
    bool is_open() const { return end != SegmentRange().end && !reduced; }
  };

  const Schedule& schedule_;
  Problems& problems_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Sources> forward_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, CutPass> cut_;
  std::map<SavedKey, Ranges> saved_for_;
};

}  // namespace

void check_meaning(const Schedule& schedule, Problems& problems) {
  MeaningCheck(schedule, problems).run();
}

}  // namespace sluice::schedule::validation
