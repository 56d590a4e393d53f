#include "engine/runtime/model_runner.hpp"

#include "base/error.hpp"

namespace sluice::runtime {
namespace {

std::byte* data_of(const Place* place) {
  return place == nullptr ? nullptr : place->data;
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
                         const LaneGroups& groups, const std::optional<GpuMessages>& gpu)
    : model_(model),
      batch_(batch),
      microbatches_(microbatches),
      state_(model, parameters, microbatches > 1 ? batch.dtype : DType::kF32),
      device_kernels_(device_kernels),
      host_kernels_(host_kernels),
      collectives_(groups, gpu) {}

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
  at.segments = instruction.segments;
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
  at.loss_scale = static_cast<float>(state_.scalars().loss_scale /
                                     static_cast<double>(batch_.rows() * microbatches_));
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
            state_.run(device_kernels_, program, instruction, {});
          },
          accesses);
    case schedule::Op::kGather:
    case schedule::Op::kAllReduce:
    case schedule::Op::kAllToAll:
    case schedule::Op::kSendForward:
    case schedule::Op::kRecvForward:
    case schedule::Op::kSendBackward:
    case schedule::Op::kRecvBackward:
      if (collectives_.runs_on_gpu()) return collectives_.run_on_gpu(program, instruction, stream);
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
  state_.run(host_kernels_, program, instruction, how);
}

void ModelRunner::run_external(const Program& program, const schedule::Instruction& instruction,
                               const std::function<void(std::exception_ptr)>& signal) {
  if (!framework_) return OperationRunner::run_external(program, instruction, signal);
  framework_(program, instruction, signal);
}

}  // namespace sluice::runtime
