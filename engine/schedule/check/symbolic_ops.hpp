// The effect of each op on the terms that it reads (private to interpret).
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "engine/schedule/check/symbolic_memory.hpp"
#include "engine/schedule/check/symbolic_segments.hpp"

namespace sluice::schedule::symbolic {

// One use with the parts that were read through it.
struct ReadValue {
  const Buffer* buffer = nullptr;
  std::uint64_t begin = 0;  // bytes of the buffer that the use covers
  std::uint64_t end = 0;
  bool in_place = false;  // the instruction writes the same buffer
  std::vector<Part> parts;
  std::int32_t peer = -1;  // Use::peer
};

// A use to be written.
struct WriteTarget {
  const Buffer* buffer = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::int32_t peer = -1;  // Use::peer
};

// Domains of hash_words that several files use: values that nothing may depend on, and missing
// ones.
inline constexpr std::uint64_t kScratch = 102, kAbsent = 105;
// The begin of a buffer of state or saved values, in bytes of its unit's extent; else 0.
std::uint64_t extent_base(const Buffer& buffer);
// A part at the wrong place of its value is another value.
Term placed_term(const Buffer& buffer, const Part& part);

// (target, part): the part's offsets are in the target's buffer.
using Emit = std::function<void(const WriteTarget&, const Part&)>;

// A rank in a collective, and the values that it brings.
struct Member {
  std::int32_t world_rank = -1;
  const std::vector<ReadValue>* reads = nullptr;
  CutKind reduction = CutKind::kSum;  // of a collective between segments
};
// The effect of a collective on one of its members, `self`. A Gather or an AllToAll moves terms. A
// reduction adds the members' terms, in the order of ranks, by the balanced tree that FoldGrad
// instructions would make of them.
void exchange(Op op, std::int32_t self, const std::vector<Member>& members,
              const std::vector<WriteTarget>& writes, const Emit& emit);

class SymbolicOps {
 public:
  // clip_accepted: the clip factor is one (InterpretOptions). `schedule` must outlive it.
  SymbolicOps(const Schedule& schedule, bool clip_accepted)
      : schedule_(schedule), segments_(schedule), clip_accepted_(clip_accepted) {}

  // The effect of an instruction that read `reads`.
  void apply(const Instruction& instruction, const std::vector<ReadValue>& reads,
             const std::vector<WriteTarget>& writes, const Emit& emit);

  // The effect of a collective between segments, or of the norm's, on its member `instruction`.
  // members: all, in the order of ranks.
  void cross(const Instruction& instruction, const std::vector<Member>& members,
             const std::vector<WriteTarget>& writes, const Emit& emit);
  const SegmentedPasses& segments() const { return segments_; }

  // Moves bytes: the reads one after another, laid out over the writes.
  static void copy(const std::vector<ReadValue>& reads, const std::vector<WriteTarget>& writes,
                   const Emit& emit);
  // Over state elements: each output element is a term of the input elements at its index. A
  // RoundGrad keeps the term: norm and update round their input in the same way, and a second
  // rounding changes nothing.
  static void elementwise(const Instruction& instruction, const std::vector<ReadValue>& reads,
                          const std::vector<WriteTarget>& writes, const Emit& emit);
  // Each result depends on the whole of its tensor in every input, whatever its pieces. The tensors
  // are those between the schedule's borders, or all of the unit.
  void update_whole(const Instruction& instruction, const std::vector<ReadValue>& reads,
                    const std::vector<WriteTarget>& writes, const Emit& emit) const;
  // The content of state as one term, whatever the chunks. Overlapping elements are an error.
  struct Run {
    std::int32_t unit = -1;
    std::uint64_t begin = 0;  // elements
    std::uint64_t end = 0;
    Term term;
    auto operator<=>(const Run&) const = default;
  };
  static std::vector<Run> runs_of(const ReadValue& read);
  static Term fold(std::vector<Run> runs);

  // The norm of all updates.
  std::optional<Term> norm() const;
  const std::map<std::int32_t, Term>& losses() const { return losses_; }

 private:
  struct NormPartial {
    std::vector<Run> runs;
    std::uint64_t bytes = 0;
  };
  // Two neighbouring borders, and what lies between them of a buffer of state, in its elements.
  using Tensor = std::pair<TensorBorder, TensorBorder>;
  std::vector<Tensor> tensors_of(std::int32_t unit) const;
  static ElemRange range_of(const Tensor& tensor, const Buffer& buffer);
  void compute(const Instruction& instruction, const std::vector<ReadValue>& reads,
               const std::vector<WriteTarget>& writes, const Emit& emit);
  bool makes_forward_values(const Instruction& instruction, const std::vector<ReadValue>& reads,
                            const Term& forward) const;
  void grad_norm(const std::vector<ReadValue>& reads, const std::vector<WriteTarget>& writes,
                 const Emit& emit);
  void clip_factor(const Instruction& instruction, const std::vector<ReadValue>& reads,
                   const std::vector<WriteTarget>& writes, const Emit& emit);

  // One value of a collective: in place, in the same bytes on all ranks.
  void cross_value(const Instruction& instruction, const std::vector<const ReadValue*>& values,
                   std::size_t own, const WriteTarget& target, const Emit& emit);
  void cross_partials(const Instruction& instruction, const std::vector<const ReadValue*>& values,
                      const WriteTarget& target, const Emit& emit);

  const Schedule& schedule_;
  SegmentedPasses segments_;
  bool clip_accepted_;
  std::map<Term, NormPartial> norm_partials_;
  std::map<std::int32_t, Term> norms_;  // by update
  std::map<std::int32_t, Term> losses_;
};

}  // namespace sluice::schedule::symbolic
