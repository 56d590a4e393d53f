// A forward and backward pass over two ranks, one unit each, with messages between them on one
// lane: smaller than what the compiler makes. Linked and packed.
#pragma once

#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"

namespace sluice::testing {

class PipelineExample {
 public:
  schedule::Schedule build(int microbatches) {
    schedule_.ranks = 2;
    schedule_.slot_bytes = 65536;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      weight_[rank] = add_home(rank, StateKind::kWeight);
      gradient_[rank] = add_home(rank, StateKind::kGradient);
    }
    for (std::int32_t mb = 0; mb < microbatches; ++mb) forward(mb);
    for (std::int32_t mb = 0; mb < microbatches; ++mb) backward(mb);
    for (std::int32_t rank = 0; rank < 2; ++rank) update(rank);
    schedule::link(schedule_);
    schedule::pack(schedule_);
    return std::move(schedule_);
  }

 private:
  static constexpr std::uint64_t kElems = 8192;
  static constexpr std::uint64_t kActivationBytes = 4096;

  schedule::BufferId add(schedule::Buffer buffer) {
    buffer.id = static_cast<schedule::BufferId>(schedule_.buffers.size());
    schedule_.buffers.push_back(buffer);
    return buffer.id;
  }
  schedule::BufferId add_state(std::int32_t rank, StateKind kind, DType dtype,
                               std::int32_t microbatch) {
    schedule::Buffer buffer;
    buffer.rank = rank;
    buffer.unit = rank;
    buffer.kind = kind;
    buffer.category = kind == StateKind::kWeight ? Category::kWeight : Category::kGradient;
    buffer.dtype = dtype;
    buffer.elems = kElems;
    buffer.bytes = kElems * dtype_bytes(dtype);
    buffer.microbatch = microbatch;
    buffer.window = true;
    return add(buffer);
  }
  schedule::BufferId add_home(std::int32_t rank, StateKind kind) {
    const schedule::BufferId home = add_state(rank, kind, DType::kF32, -1);
    schedule_.buffers[home].persistent = true;
    if (kind == StateKind::kWeight) {
      schedule_.entry.push_back({kind, rank, -1, home, 0});
      schedule_.exit.push_back({kind, rank, -1, home, 1});
    }
    return home;
  }
  // unit: of the value; -1: the rank's own.
  schedule::BufferId add_activation(std::int32_t rank, schedule::BufferRole role,
                                    std::int32_t microbatch, std::int32_t unit = -1) {
    schedule::Buffer buffer;
    buffer.rank = rank;
    buffer.unit = unit < 0 ? rank : unit;
    buffer.role = role;
    buffer.bytes = kActivationBytes;
    if (role == schedule::BufferRole::kSaved) buffer.elems = kActivationBytes;
    buffer.microbatch = microbatch;
    return add(buffer);
  }
  void emit(schedule::Op op, schedule::Lane lane, std::int32_t rank, std::int32_t microbatch,
            std::vector<schedule::BufferId> reads, std::vector<schedule::BufferId> writes) {
    schedule::Instruction instruction;
    instruction.op = op;
    instruction.lane = lane;
    instruction.rank = rank;
    instruction.unit = rank;
    instruction.layer = rank;
    instruction.microbatch = microbatch;
    for (const schedule::BufferId id : reads) instruction.reads.push_back({id, 0, 0});
    for (const schedule::BufferId id : writes) instruction.writes.push_back({id, 0, 0});
    instruction.cost_s = op == schedule::Op::kRelease ? 0.0 : 1e-3;
    schedule_.instructions.push_back(std::move(instruction));
  }
  void message(schedule::Op op, std::int32_t rank, std::int32_t microbatch,
               schedule::BufferId buffer, bool send) {
    emit(op, schedule::Lane::kComm, rank, microbatch, {}, {});
    schedule::Instruction& instruction = schedule_.instructions.back();
    (send ? instruction.reads : instruction.writes).push_back({buffer, 0, 0});
    instruction.unit = instruction.layer = schedule_.buffers[buffer].unit;
    instruction.peer = 1 - rank;
    instruction.tag = microbatch;
    instruction.bytes = kActivationBytes;
  }

  void forward(std::int32_t mb) {
    const schedule::BufferId out = add_activation(0, schedule::BufferRole::kActivation, mb);
    saved_.push_back(add_activation(0, schedule::BufferRole::kSaved, mb));
    emit(schedule::Op::kForward, schedule::Lane::kCompute, 0, mb, {weight_[0]},
         {out, saved_.back()});
    message(schedule::Op::kSendForward, 0, mb, out, true);
    emit(schedule::Op::kRelease, schedule::Lane::kComm, 0, mb, {out}, {});
    input_.push_back(add_activation(1, schedule::BufferRole::kActivation, mb, 0));
    message(schedule::Op::kRecvForward, 1, mb, input_.back(), false);
    const schedule::BufferId loss = add_activation(1, schedule::BufferRole::kLoss, mb);
    schedule_.buffers[loss].persistent = true;
    loss_saved_.push_back(add_activation(1, schedule::BufferRole::kSaved, mb));
    emit(schedule::Op::kLoss, schedule::Lane::kCompute, 1, mb, {weight_[1], input_.back()},
         {loss, loss_saved_.back()});
  }

  void backward(std::int32_t mb) {
    const auto at = static_cast<std::size_t>(mb);
    const schedule::BufferId grad = add_activation(1, schedule::BufferRole::kGradOut, mb, 0);
    emit(schedule::Op::kBackwardInput, schedule::Lane::kCompute, 1, mb,
         {weight_[1], loss_saved_[at]}, {grad});
    message(schedule::Op::kSendBackward, 1, mb, grad, true);
    emit(schedule::Op::kRelease, schedule::Lane::kComm, 1, mb, {grad}, {});
    weight_gradient(1, mb, {input_[at], loss_saved_[at]});
    const schedule::BufferId received = add_activation(0, schedule::BufferRole::kGradOut, mb);
    message(schedule::Op::kRecvBackward, 0, mb, received, false);
    weight_gradient(0, mb, {saved_[at], received});
  }

  void weight_gradient(std::int32_t rank, std::int32_t mb, std::vector<schedule::BufferId> reads) {
    const schedule::BufferId fresh = add_state(rank, StateKind::kGradient, DType::kF32, mb);
    emit(schedule::Op::kBackwardWeight, schedule::Lane::kCompute, rank, mb, reads, {fresh});
    emit(schedule::Op::kRelease, schedule::Lane::kCompute, rank, mb, reads, {});
    std::vector<schedule::BufferId> sum{fresh};
    if (mb > 0) sum.push_back(gradient_[rank]);
    emit(schedule::Op::kAccumulateGrad, schedule::Lane::kOptimizer, rank, mb, sum,
         {gradient_[rank]});
    emit(schedule::Op::kRelease, schedule::Lane::kOptimizer, rank, mb, {fresh}, {});
  }

  void update(std::int32_t rank) {
    emit(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer, rank, -1,
         {gradient_[rank], weight_[rank]}, {weight_[rank]});
  }

  schedule::Schedule schedule_;
  schedule::BufferId weight_[2]{}, gradient_[2]{};
  std::vector<schedule::BufferId> saved_, input_, loss_saved_;  // by micro-batch
};

inline schedule::Schedule two_stage_pipeline(int microbatches) {
  return PipelineExample().build(microbatches);
}

}  // namespace sluice::testing
