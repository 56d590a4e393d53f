#include "engine/planner/trial/coarse_step.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/units.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/compile/rank_share.hpp"
#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::planner {
namespace {

bool is_of(const schedule::Buffer& buffer, schedule::Ring ring) {
  return buffer.ring == static_cast<std::int32_t>(ring);
}

// Pieces of a ring. In the order "unit" all pieces of a gradient's sum wait together for the next
// micro-batch, so they are none.
bool is_staging(const schedule::StepOptions& options, const schedule::Buffer& buffer) {
  const bool waits = options.order == schedule::ComputeOrder::kUnit && options.microbatches > 1 &&
                     buffer.kind == StateKind::kGradient && buffer.dtype == DType::kF32;
  return !buffer.persistent && buffer.tier == Tier::kPinned && buffer.chunk >= 0 &&
         buffer.role == schedule::BufferRole::kState && !buffer.per_tensor && !waits;
}

bool is_spilled_piece(const schedule::Buffer& buffer) {
  return is_of(buffer, schedule::Ring::kSpills) || is_of(buffer, schedule::Ring::kFetches);
}

std::uint64_t update_piece(const schedule::StepOptions& options) {
  return options.update_piece_elems > 0 ? options.update_piece_elems : options.piece_elems;
}

}  // namespace

std::int32_t coarse_rounds(const schedule::StepModel& model, const schedule::StepOptions& options,
                           std::int32_t between) {
  const std::int32_t own = schedule::own_microbatch_count(model, options);
  return options.fold_groups > 1 ? own : std::min(own, 2 + between);
}

CoarseStep::CoarseStep(const schedule::StepModel& model, const schedule::StepOptions& options,
                       std::int32_t rounds, std::uint64_t pieces)
    : model_(model),
      options_(options),
      coarse_(options),
      rounds_(rounds),
      missing_(schedule::own_microbatch_count(model, options) - rounds) {
  const std::uint64_t least = round_up(largest_updated_elems(model) / pieces, kLawBlockElems);
  coarse_.microbatches = rounds * model.view.ranks;
  coarse_.piece_elems = std::max(options.piece_elems, least);
  if (options.update_piece_elems > 0) {
    coarse_.update_piece_elems = std::max(options.update_piece_elems, least);
  }
}

bool CoarseStep::is_exact() const {
  const std::uint64_t largest = largest_updated_elems(model_);
  // Pieces beyond the largest unit are all of it.
  const auto as_cut = [largest](std::uint64_t elems) { return std::min(elems, largest); };
  return missing_ == 0 && as_cut(coarse_.piece_elems) == as_cut(options_.piece_elems) &&
         as_cut(update_piece(coarse_)) == as_cut(update_piece(options_));
}

schedule::Schedule CoarseStep::generate() const {
  return schedule::generate(model_, coarse_, schedule::StepKind::kTraining);
}

void CoarseStep::shrink_staging(schedule::Schedule& coarse) const {
  // A rule for whole tensors takes a unit's state as one piece, whatever the pieces of others are.
  const bool whole_tensors = kernels::needs_whole_tensors(model_.optimizer);
  for (schedule::Buffer& buffer : coarse.buffers) {
    const bool updates = is_of(buffer, schedule::Ring::kUpdates);
    const std::uint64_t piece = updates ? update_piece(options_) : options_.piece_elems;
    if (is_staging(options_, buffer) && !(whole_tensors && updates)) {
      buffer.bytes = std::min(buffer.bytes, bytes_of(buffer.dtype, piece));
    }
    // A spilled value is often one coarse piece, and as many exact ones as its ring is deep.
    if (is_spilled_piece(buffer)) {
      const auto deep = static_cast<std::uint64_t>(options_.stream_lookahead) + 1;
      buffer.bytes = std::min(buffer.bytes, deep * bytes_of(DType::kF32, options_.piece_elems));
    }
  }
}

double CoarseStep::pieces_of(const schedule::Buffer& buffer, const schedule::Use& use,
                             bool updates) const {
  if (is_spilled_piece(buffer)) {
    const std::uint64_t bytes = use.bytes == 0 ? buffer.bytes : use.bytes;
    return static_cast<double>(bytes) /
           static_cast<double>(bytes_of(DType::kF32, options_.piece_elems));
  }
  if (buffer.role != schedule::BufferRole::kState || buffer.per_tensor) return 1;
  const bool of_update = updates || is_of(buffer, schedule::Ring::kUpdates);
  if (of_update && kernels::needs_whole_tensors(model_.optimizer)) return 1;
  const std::uint64_t exact = of_update ? update_piece(options_) : options_.piece_elems;
  const std::uint64_t coarse = of_update ? update_piece(coarse_) : coarse_.piece_elems;
  const std::uint64_t elems = schedule::elems_of(buffer, use).elems();
  // More than a coarse piece is no piece, but a window.
  return elems > coarse ? 1 : static_cast<double>(elems) / static_cast<double>(exact);
}

void CoarseStep::price(schedule::Schedule& coarse, CostModel& costs) const {
  struct Whole {
    schedule::Instruction instruction;
    double pieces = 1;
  };
  std::vector<Whole> wholes;
  for (schedule::Instruction& instruction : coarse.instructions) {
    const bool updates = instruction.op == schedule::Op::kOptimizerStep;
    double pieces = 1;
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const schedule::Use& use : *uses) {
        pieces = std::max(pieces, pieces_of(coarse.buffers[use.buffer], use, updates));
      }
    }
    if (pieces <= 1) continue;
    wholes.push_back({instruction, pieces});
    const auto one = [pieces](std::uint64_t bytes) {
      return round_up(static_cast<std::uint64_t>(static_cast<double>(bytes) / pieces),
                      schedule::kDirectAlignmentBytes);
    };
    instruction.bytes = one(instruction.bytes);
    for (auto* uses : {&instruction.reads, &instruction.writes}) {
      for (schedule::Use& use : *uses) {
        const schedule::Buffer& buffer = coarse.buffers[use.buffer];
        if (!buffer.per_tensor) use.bytes = one(use.bytes == 0 ? buffer.bytes : use.bytes);
      }
    }
  }
  costs.apply(coarse);
  for (Whole& whole : wholes) {
    schedule::Instruction& instruction = coarse.instructions[whole.instruction.id];
    whole.instruction.cost_s = whole.pieces * instruction.cost_s;
    instruction = std::move(whole.instruction);
  }
}

void CoarseStep::lengthen_rounds(schedule::Schedule& coarse) const {
  if (missing_ == 0) return;
  const double times = 1 + static_cast<double>(missing_) / (rounds_ - 2);
  for (schedule::Instruction& instruction : coarse.instructions) {
    const std::int32_t round = instruction.microbatch / model_.view.ranks;
    if (instruction.microbatch < 0 || round < 1 || round + 1 >= rounds_) continue;
    instruction.cost_s *= times;
    instruction.bytes =
        static_cast<std::uint64_t>(std::llround(static_cast<double>(instruction.bytes) * times));
  }
}

}  // namespace sluice::planner
