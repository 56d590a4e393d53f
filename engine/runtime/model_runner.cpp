#include "engine/runtime/model_runner.hpp"

#include <algorithm>
#include <cmath>

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
schedule::ElemRange elems_at(const Place& place, const std::vector<schedule::Use>& uses) {
  const auto use = std::find_if(uses.begin(), uses.end(), [&](const schedule::Use& candidate) {
    return candidate.buffer == place.buffer->id;
  });
  SLUICE_CHECK(use != uses.end());
  return schedule::elems_of(*place.buffer, *use);
}

// Passes use each of them whole.
void add_saved(const std::vector<Place>& places, model::SavedRanges& saved) {
  for (const Place& place : places) {
    if (place.buffer->role != schedule::BufferRole::kSaved) continue;
    const std::uint64_t begin = place.buffer->first_elem;
    saved.add(begin, begin + place.bytes, place.data);
  }
}

schedule::PartMask parts_written(const std::vector<Place>& writes,
                                 const std::vector<schedule::SavedPart>& parts) {
  schedule::PartMask mask = 0;
  for (const Place& place : writes) {
    if (place.buffer->role != schedule::BufferRole::kSaved) continue;
    const std::uint64_t begin = place.buffer->first_elem;
    mask |= schedule::parts_within(parts, begin, begin + place.bytes);
  }
  return mask;
}

std::vector<device::MemoryAccess> accesses_of(const Program& program, schedule::InstructionId id) {
  std::vector<device::MemoryAccess> accesses;
  for (const Place& place : program.reads(id)) {
    if (place.buffer->tier == Tier::kDevice) accesses.push_back({place.data, place.bytes, false});
  }
  for (const Place& place : program.writes(id)) {
    if (place.buffer->tier == Tier::kDevice) accesses.push_back({place.data, place.bytes, true});
  }
  return accesses;
}

}  // namespace

ModelRunner::ModelRunner(const model::Model& model, const model::BatchShape& batch,
                         std::int32_t microbatches, const model::ParameterTable& parameters,
                         kernels::Kernels& device_kernels, kernels::Kernels& host_kernels,
                         collectives::Communicator& ranks)
    : model_(model),
      batch_(batch),
      microbatches_(microbatches),
      parameters_(parameters),
      device_kernels_(device_kernels),
      host_kernels_(host_kernels),
      collectives_(ranks) {}

model::PassBuffers ModelRunner::pass_buffers(const Program& program,
                                             const schedule::Instruction& instruction) const {
  const auto& reads = program.reads(instruction.id);
  const auto& writes = program.writes(instruction.id);
  const model::Unit& unit = model_.units()[static_cast<std::size_t>(instruction.unit)];
  model::PassBuffers at;
  at.weights = data_of(find_state(reads, StateKind::kWeight, instruction.unit));
  if (unit.borrows >= 0) {
    at.tied_weights = data_of(find_state(reads, StateKind::kWeight, unit.borrows));
  }
  if (const Place* tokens = find_place(reads, schedule::BufferRole::kTokens); tokens != nullptr) {
    at.tokens = reinterpret_cast<const std::int32_t*>(tokens->data);
    at.targets = at.tokens + batch_.rows();
  }
  at.input = data_of(find_place(reads, schedule::BufferRole::kActivation));
  at.output = data_of(find_place(writes, schedule::BufferRole::kActivation));
  for (const auto* places : {&writes, &reads}) add_saved(*places, at.saved);
  // An External pass may be a Recompute.
  if (instruction.op == schedule::Op::kRecompute || instruction.op == schedule::Op::kExternal) {
    at.remade = parts_written(writes, unit.layer->saves(batch_, device_kernels_));
  }
  at.context = data_of(find_place(writes, schedule::BufferRole::kWeightContext));
  if (at.context == nullptr)
    at.context = data_of(find_place(reads, schedule::BufferRole::kWeightContext));
  at.grad_output = data_of(find_place(reads, schedule::BufferRole::kGradOut));
  at.grad_input = data_of(find_place(writes, schedule::BufferRole::kGradOut));
  at.grad_weights = data_of(find_state(writes, StateKind::kGradient, instruction.unit));
  const auto tied_unit = static_cast<std::int32_t>(model_.units().size());
  at.tied_grad_weights = data_of(find_state(writes, StateKind::kGradient, tied_unit));
  at.loss = reinterpret_cast<double*>(data_of(find_place(writes, schedule::BufferRole::kLoss)));
  at.loss_scale =
      static_cast<float>(scalars_.loss_scale / static_cast<double>(batch_.rows() * microbatches_));
  at.workspace = data_of(find_place(writes, schedule::BufferRole::kWorkspace));
  return at;
}

void ModelRunner::run_pass(const schedule::Instruction& instruction,
                           const model::PassBuffers& buffers) {
  const model::Layer& layer = *model_.units()[static_cast<std::size_t>(instruction.unit)].layer;
  switch (instruction.op) {
    case schedule::Op::kForward:
      return layer.forward(device_kernels_, batch_, buffers);
    case schedule::Op::kRecompute:
      return layer.recompute(device_kernels_, batch_, buffers);
    case schedule::Op::kLoss:
      return layer.loss(device_kernels_, batch_, buffers);
    case schedule::Op::kBackwardInput:
      return layer.backward_input(device_kernels_, batch_, buffers);
    case schedule::Op::kBackwardWeight:
      return layer.backward_weight(device_kernels_, batch_, buffers);
    default:
      throw InternalError("not a pass: " + std::string(schedule::op_name(instruction.op)));
  }
}

void ModelRunner::run_on_device(const Program& program, const schedule::Instruction& instruction,
                                device::Stream& stream) {
  const std::vector<device::MemoryAccess> accesses = accesses_of(program, instruction.id);
  switch (instruction.op) {
    case schedule::Op::kAccumulateGrad:
    case schedule::Op::kFoldGrad:
    case schedule::Op::kRoundGrad:
    case schedule::Op::kGradNorm:
    case schedule::Op::kOptimizerStep:
      return stream.launch(
          [this, &program, &instruction, native = stream.native()] {
            device_kernels_.set_stream(native);
            run_state_operation(device_kernels_, program, instruction, {});
          },
          accesses);
    case schedule::Op::kGather:
    case schedule::Op::kAllToAll:
      return stream.launch(
          [this, &program, &instruction] { collectives_.run(program, instruction); }, accesses);
    default:
      return stream.launch(
          [this, &instruction, buffers = pass_buffers(program, instruction),
           native = stream.native()] {
            device_kernels_.set_stream(native);
            run_pass(instruction, buffers);
          },
          accesses);
  }
}

void ModelRunner::run_on_host(const Program& program, const schedule::Instruction& instruction,
                              const kernels::HostUpdate& how) {
  if (instruction.op == schedule::Op::kClipFactor) return clip_factor(program, instruction);
  run_state_operation(host_kernels_, program, instruction, how);
}

void ModelRunner::run_external(const Program& program, const schedule::Instruction& instruction,
                               const std::function<void(std::exception_ptr)>& signal) {
  if (!framework_) return OperationRunner::run_external(program, instruction, signal);
  framework_(program, instruction, signal);
}

void ModelRunner::run_state_operation(kernels::Kernels& kernels, const Program& program,
                                      const schedule::Instruction& instruction,
                                      const kernels::HostUpdate& how) const {
  switch (instruction.op) {
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
void ModelRunner::accumulate(kernels::Kernels& kernels, const Program& program,
                             const schedule::Instruction& instruction) const {
  const auto& reads = program.reads(instruction.id);
  const Place& sum = program.writes(instruction.id).front();
  kernels.accumulate(reinterpret_cast<float*>(sum.data), reads.front().data,
                     reads.front().buffer->dtype, reads.size() == 1,
                     static_cast<std::int64_t>(sum.bytes / sizeof(float)));
}

// reads: into, from.
void ModelRunner::fold(kernels::Kernels& kernels, const Program& program,
                       const schedule::Instruction& instruction) const {
  const auto& reads = program.reads(instruction.id);
  const DType dtype = reads[0].buffer->dtype;
  kernels.fold(reads[0].data, reads[1].data, dtype,
               static_cast<std::int64_t>(reads[0].bytes / dtype_bytes(dtype)));
}

// A sum is rounded once, to nearest even, as norm and update would round it.
void ModelRunner::round(kernels::Kernels& kernels, const Program& program,
                        const schedule::Instruction& instruction) {
  const Place& sum = program.reads(instruction.id).front();
  const Place& rounded = program.writes(instruction.id).front();
  kernels.cast(sum.data, sum.buffer->dtype, rounded.data, rounded.buffer->dtype, false,
               static_cast<std::int64_t>(sum.bytes / dtype_bytes(sum.buffer->dtype)));
}

void ModelRunner::norm(kernels::Kernels& kernels, const Program& program,
                       const schedule::Instruction& instruction) const {
  const Place& gradient = program.reads(instruction.id).front();
  const Place& partials = program.writes(instruction.id).front();
  const DType dtype = gradient.buffer->dtype;
  const auto [begin, end] = elems_at(gradient, instruction.reads);
  const model::UnitLayout& layout =
      model_.units()[static_cast<std::size_t>(instruction.unit)].layer->layout();
  const auto [first, last] = layout.norm_block_range(begin, end);
  std::vector<kernels::Kernels::Block> blocks;
  blocks.reserve(last - first);
  for (std::size_t i = first; i < last; ++i) {
    const model::NormBlock& block = layout.norm_blocks()[i];
    blocks.push_back({static_cast<std::int64_t>(block.begin - begin),
                      static_cast<std::int64_t>(block.end - begin)});
  }
  SLUICE_CHECK(partials.bytes == blocks.size() * sizeof(double));
  // A fp32 sum of micro-batches is rounded once, to the gradients' own dtype.
  const DType round_to = sums_micro_batches() ? batch_.dtype : DType::kF32;
  kernels.squared_norm_blocks(gradient.data, dtype, round_to, blocks,
                              reinterpret_cast<double*>(partials.data));
}

// `block` counts through all units in tensor order, as the partials of the norm stand.
std::string ModelRunner::tensor_of_norm_block(std::size_t block) const {
  for (const model::Unit& unit : model_.units()) {
    const model::UnitLayout& layout = unit.layer->layout();
    if (block >= layout.norm_blocks().size()) {
      block -= layout.norm_blocks().size();
      continue;
    }
    const std::uint64_t begin = layout.norm_blocks()[block].begin;
    for (const model::PlacedTensor& tensor : layout.tensors()) {
      if (begin < tensor.first_elem + tensor.spec.elems()) return tensor.spec.name;
    }
  }
  throw InternalError("no tensor has this norm block");
}

void ModelRunner::clip_factor(const Program& program, const schedule::Instruction& instruction) {
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
  results_.grad_norm = norm;
  results_.clipped = static_cast<float>(scalar[1]) != static_cast<float>(1.0 / scalars_.loss_scale);
  if (std::isfinite(norm)) return;
  for (std::size_t i = 0; i < count && results_.overflowed_tensor.empty(); ++i) {
    if (!std::isfinite(values[i])) results_.overflowed_tensor = tensor_of_norm_block(i);
  }
  results_.overflow = true;
  if (scalars_.skip_overflow) return;
  const std::string first = results_.overflowed_tensor.empty()
                                ? std::string()
                                : ", first that of '" + results_.overflowed_tensor + "'";
  throw Error("the gradient norm is not finite" + first +
              ": training has diverged; lower optimizer.lr or " +
              (scalars_.clip > 0 ? "train.clip" : "set train.clip"));
}

// Kernels update in place. State that is read in one place and made in another is copied first.
// State that is only written needs no copy.
void ModelRunner::copy_found(kernels::Kernels& kernels, const std::vector<Place>& reads,
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
void ModelRunner::keep_weight(kernels::Kernels& kernels, const Place* master, const Place& weight) {
  if (master == nullptr) return;
  kernels.cast(master->data, DType::kF32, weight.data, weight.buffer->dtype, true,
               static_cast<std::int64_t>(master->bytes / sizeof(float)));
}

void ModelRunner::optimizer_step(kernels::Kernels& kernels, const Program& program,
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
    keep_weight(kernels, master, weight);
    if (how.guard != nullptr) how.guard->after(0, elems);
    return;
  }
  copy_found(kernels, reads, writes, unit);

  kernels::UpdateBuffers buffers;
  buffers.grad = gradient.data;
  buffers.grad_dtype = gradient.buffer->dtype;
  if (sums_micro_batches()) buffers.round_grad_to = batch_.dtype;
  buffers.weight = weight.data;
  buffers.master = data_of(master);
  buffers.moment1 = data_of(find_state(writes, StateKind::kMoment1, unit));
  buffers.moment2 = data_of(find_state(writes, StateKind::kMoment2, unit));
  buffers.elems = elems;
  buffers.host = how;

  kernels::UpdateScalars scalars =
      program.of_pending_update(instruction.id) ? scalars_.pending_update : scalars_.update;
  scalars.grad_scale = static_cast<float>(clip == nullptr ? 1.0 / scalars_.loss_scale : clip[1]);
  kernels.update(parameters_.options(), buffers,
                 parameters_.segments(static_cast<std::size_t>(unit), range.begin, range.end),
                 scalars, data_of(find_place(writes, schedule::BufferRole::kWorkspace)));
}

}  // namespace sluice::runtime
