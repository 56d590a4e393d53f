#include "engine/runtime/state_operations.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace sluice::runtime {
namespace {

const Place& state(const std::vector<Place>& places, StateKind kind, std::int32_t unit) {
  const Place* place = find_state(places, kind, unit);
  SLUICE_CHECK(place != nullptr);
  return *place;
}

std::byte* data_of(const Place* place) {
  return place == nullptr ? nullptr : place->data;
}

// The elements of its unit that a place covers; `uses` holds the instruction's use of its buffer.
schedule::ElemRange elems_at(const Place& place, const schedule::Uses& uses) {
  const auto use = std::find_if(uses.begin(), uses.end(), [&](const schedule::Use& candidate) {
    return candidate.buffer == place.buffer->id;
  });
  SLUICE_CHECK(use != uses.end());
  return schedule::elems_of(*place.buffer, *use);
}

}  // namespace

void StateOperations::run(kernels::StateKernels& kernels, const Program& program,
                          const schedule::Instruction& instruction,
                          const kernels::HostUpdate& how) {
  switch (instruction.op) {
    case schedule::Op::kClipFactor:
      return clip_factor(program, instruction);
    case schedule::Op::kAccumulateGrad:
      return accumulate(kernels, program, instruction);
    case schedule::Op::kFoldGrad:
      return fold(kernels, program, instruction);
    case schedule::Op::kRoundGrad:
      return round(kernels, program, instruction);
    case schedule::Op::kGradNorm:
      return norm(kernels, program, instruction);
    case schedule::Op::kOptimizerStep:
      return optimizer_step(kernels, program, instruction, how);
    default:
      throw InternalError("no such operation: " + std::string(schedule::op_name(instruction.op)));
  }
}

// reads: the micro-batch's gradient, then (not for the first micro-batch) the sum; writes: the sum.
void StateOperations::accumulate(kernels::StateKernels& kernels, const Program& program,
                                 const schedule::Instruction& instruction) const {
  const auto& reads = program.reads(instruction.id);
  const Place& sum = program.writes(instruction.id).front();
  kernels.accumulate(reinterpret_cast<float*>(sum.data), reads.front().data,
                     reads.front().buffer->dtype, reads.size() == 1,
                     static_cast<std::int64_t>(sum.bytes / sizeof(float)));
}

// reads: into, from.
void StateOperations::fold(kernels::StateKernels& kernels, const Program& program,
                           const schedule::Instruction& instruction) const {
  const auto& reads = program.reads(instruction.id);
  const DType dtype = reads[0].buffer->dtype;
  kernels.fold(reads[0].data, reads[1].data, dtype,
               static_cast<std::int64_t>(reads[0].bytes / dtype_bytes(dtype)));
}

// A sum is rounded once, to nearest even, as norm and update would round it.
void StateOperations::round(kernels::StateKernels& kernels, const Program& program,
                            const schedule::Instruction& instruction) {
  const Place& sum = program.reads(instruction.id).front();
  const Place& rounded = program.writes(instruction.id).front();
  kernels.cast(sum.data, sum.buffer->dtype, rounded.data, rounded.buffer->dtype, false,
               static_cast<std::int64_t>(sum.bytes / dtype_bytes(sum.buffer->dtype)));
}

void StateOperations::norm(kernels::StateKernels& kernels, const Program& program,
                           const schedule::Instruction& instruction) const {
  const Place& gradient = program.reads(instruction.id).front();
  const Place& partials = program.writes(instruction.id).front();
  const DType dtype = gradient.buffer->dtype;
  const auto [begin, end] = elems_at(gradient, instruction.reads);
  const model::UnitLayout& layout = space_.layout(static_cast<std::size_t>(instruction.unit));
  const auto [first, last] = layout.norm_block_range(begin, end);
  std::vector<kernels::StateKernels::Block> blocks;
  blocks.reserve(last - first);
  for (std::size_t i = first; i < last; ++i) {
    const model::NormBlock block = layout.norm_block(i);
    blocks.push_back({static_cast<std::int64_t>(block.begin - begin),
                      static_cast<std::int64_t>(block.end - begin)});
  }
  SLUICE_CHECK(partials.bytes == blocks.size() * sizeof(double));
  kernels.squared_norm_blocks(gradient.data, dtype, round_sums_to_, blocks,
                              reinterpret_cast<double*>(partials.data));
}

void StateOperations::clip_factor(const Program& program,
                                  const schedule::Instruction& instruction) {
  const Place& partials = program.reads(instruction.id).front();
  const auto* values = reinterpret_cast<const double*>(partials.data);
  const std::size_t count = partials.bytes / sizeof(double);
  double sum = 0;
  // Tensor order. A step of several ranks has gathered the partials of all of them.
  for (std::size_t i = 0; i < count; ++i) sum += values[i];
  // The norm of the gradients without the loss scale; this division is exact.
  const double norm = std::sqrt(sum) / scalars_.loss_scale;
  const bool clips = scalars_.clip > 0 && norm > scalars_.clip;
  auto* scalar = reinterpret_cast<double*>(program.writes(instruction.id).front().data);
  scalar[0] = norm;
  scalar[1] = (clips ? scalars_.clip / norm : 1.0) / scalars_.loss_scale;
  // A factor above 1 may take finite gradients out of fp32's range. No element is above the norm.
  const double scaled_norm = clips ? scalars_.clip : norm;
  const bool leaves_range =
      scalar[1] > 1 && scaled_norm > double{std::numeric_limits<float>::max()};
  if (leaves_range) scalar[0] = std::numeric_limits<double>::infinity();
  StepResults& results = results_[static_cast<std::size_t>(instruction.update)];
  results.grad_norm = norm;
  results.clipped = static_cast<float>(scalar[1]) != static_cast<float>(1.0 / scalars_.loss_scale);
  if (std::isfinite(scalar[0])) return;
  for (std::size_t i = 0; i < count && results.overflowed_tensor.empty(); ++i) {
    if (!std::isfinite(values[i])) results.overflowed_tensor = space_.tensor_of_norm_block(i);
  }
  results.overflow = true;
  if (scalars_.skip_overflow) return;
  const std::string first = results.overflowed_tensor.empty()
                                ? std::string()
                                : ", first that of '" + results.overflowed_tensor + "'";
  throw Error("the gradient norm is not finite" + first +
              ": training has diverged; lower optimizer.lr or " +
              (scalars_.clip > 0 ? "train.clip" : "set train.clip"));
}

// Kernels update in place. State that is read in one place and made in another is copied first.
// State that is only written needs no copy.
void StateOperations::copy_found(kernels::StateKernels& kernels, const std::vector<Place>& reads,
                                 const std::vector<Place>& writes, std::int32_t unit) {
  for (const Place& from : reads) {
    if (from.buffer->role != schedule::BufferRole::kState) continue;
    const Place* to = find_state(writes, from.buffer->kind, unit);
    if (to == nullptr || to->data == from.data) continue;
    SLUICE_CHECK(to->bytes == from.bytes && from.bytes % sizeof(float) == 0);
    // Between equal dtypes the bits are kept, whatever they stand for.
    kernels.cast(from.data, DType::kF32, to->data, DType::kF32, false,
                 static_cast<std::int64_t>(from.bytes / sizeof(float)));
  }
}

// Handles a skipped step. The states of a piece go back to their homes unchanged, except for a
// 16-bit weight, which the update only writes. It is rounded from the master again, which gives the
// same bits.
void StateOperations::keep_weight(kernels::StateKernels& kernels, const Place* master,
                                  const Place& weight) {
  if (master == nullptr) return;
  kernels.cast(master->data, DType::kF32, weight.data, weight.buffer->dtype, true,
               static_cast<std::int64_t>(master->bytes / sizeof(float)));
}

const kernels::UpdateScalars& StateOperations::scalars_of(
    const Program& program, const schedule::Instruction& instruction) const {
  if (!scalars_.updates.empty()) {
    return scalars_.updates.at(static_cast<std::size_t>(instruction.update));
  }
  return program.of_pending_update(instruction.id) ? scalars_.pending_update : scalars_.update;
}

void StateOperations::optimizer_step(kernels::StateKernels& kernels, const Program& program,
                                     const schedule::Instruction& instruction,
                                     const kernels::HostUpdate& how) const {
  const auto& reads = program.reads(instruction.id);
  const auto& writes = program.writes(instruction.id);
  const std::int32_t unit = instruction.unit;
  const Place& gradient = state(reads, StateKind::kGradient, unit);
  const Place& weight = state(writes, StateKind::kWeight, unit);
  const Place* master = find_state(writes, StateKind::kMaster, unit);
  // An update that does not wait for the norm has none: gradients count as they are, but for the
  // loss scale.
  const Place* scalar = find_place(reads, schedule::BufferRole::kScalar);
  const auto* clip = reinterpret_cast<const double*>(data_of(scalar));
  const schedule::ElemRange range = elems_at(gradient, instruction.reads);
  const auto elems = static_cast<std::int64_t>(range.elems());
  if (clip != nullptr && !std::isfinite(clip[0])) {
    if (how.guard != nullptr) how.guard->before(0, elems);
    // Where the rule reads the weight (a split master), it is still there as it was.
    const kernels::OptimizerOptions& options = table_.options(static_cast<std::size_t>(unit));
    if (!kernels::reads_weight(options)) keep_weight(kernels, master, weight);
    if (how.guard != nullptr) how.guard->after(0, elems);
    return;
  }
  copy_found(kernels, reads, writes, unit);

  kernels::UpdateBuffers buffers;
  buffers.grad = gradient.data;
  buffers.grad_dtype = gradient.buffer->dtype;
  buffers.round_grad_to = round_sums_to_;
  buffers.weight = weight.data;
  buffers.master = data_of(master);
  buffers.moment1 = data_of(find_state(writes, StateKind::kMoment1, unit));
  buffers.moment2 = data_of(find_state(writes, StateKind::kMoment2, unit));
  buffers.elems = elems;
  buffers.host = how;

  kernels::UpdateScalars scalars = scalars_of(program, instruction);
  scalars.grad_scale = static_cast<float>(clip == nullptr ? 1.0 / scalars_.loss_scale : clip[1]);
  const auto at = static_cast<std::size_t>(unit);
  kernels.update(table_.options(at), buffers, table_.segments(at, range.begin, range.end), scalars,
                 data_of(find_place(writes, schedule::BufferRole::kWorkspace)));
}

}  // namespace sluice::runtime
