// A forward and backward pass over two ranks, one unit each, with messages between them: what the
// single-rank generator does not make. Linked and packed.
#pragma once

#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"

namespace sluice::testing {

class PipelineExample {
 public:
  Schedule build(int microbatches) {
    schedule_.ranks = 2;
    schedule_.slot_bytes = 65536;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      weight_[rank] = add_home(rank, StateKind::kWeight);
      gradient_[rank] = add_home(rank, StateKind::kGradient);
    }
    for (std::int32_t mb = 0; mb < microbatches; ++mb) forward(mb);
    for (std::int32_t mb = 0; mb < microbatches; ++mb) backward(mb);
    for (std::int32_t rank = 0; rank < 2; ++rank) update(rank);
    link(schedule_);
    pack(schedule_);
    return std::move(schedule_);
  }

 private:
  static constexpr std::uint64_t kElems = 8192;
  static constexpr std::uint64_t kActivationBytes = 4096;

  BufferId add(Buffer buffer) {
    buffer.id = static_cast<BufferId>(schedule_.buffers.size());
    schedule_.buffers.push_back(buffer);
    return buffer.id;
  }
  BufferId add_state(std::int32_t rank, StateKind kind, DType dtype, std::int32_t microbatch) {
    Buffer buffer;
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
  BufferId add_home(std::int32_t rank, StateKind kind) {
    const BufferId home = add_state(rank, kind, DType::kF32, -1);
    schedule_.buffers[home].persistent = true;
    if (kind == StateKind::kWeight) {
      schedule_.entry.push_back({kind, rank, -1, home, 0});
      schedule_.exit.push_back({kind, rank, -1, home, 1});
    }
    return home;
  }
  BufferId add_activation(std::int32_t rank, BufferRole role, std::int32_t microbatch) {
    Buffer buffer;
    buffer.rank = rank;
    buffer.unit = rank;
    buffer.role = role;
    buffer.bytes = kActivationBytes;
    if (role == BufferRole::kSaved) buffer.elems = kActivationBytes;
    buffer.microbatch = microbatch;
    return add(buffer);
  }
  void emit(Op op, Lane lane, std::int32_t rank, std::int32_t microbatch,
            std::vector<BufferId> reads, std::vector<BufferId> writes) {
    Instruction instruction;
    instruction.op = op;
    instruction.lane = lane;
    instruction.rank = rank;
    instruction.unit = rank;
    instruction.layer = rank;
    instruction.microbatch = microbatch;
    for (const BufferId id : reads) instruction.reads.push_back({id, 0, 0});
    for (const BufferId id : writes) instruction.writes.push_back({id, 0, 0});
    instruction.cost_s = op == Op::kRelease ? 0.0 : 1e-3;
    schedule_.instructions.push_back(std::move(instruction));
  }
  void message(Op op, std::int32_t rank, std::int32_t microbatch, BufferId buffer, bool send) {
    emit(op, Lane::kComm, rank, microbatch, {}, {});
    Instruction& instruction = schedule_.instructions.back();
    (send ? instruction.reads : instruction.writes).push_back({buffer, 0, 0});
    instruction.peer = 1 - rank;
    instruction.tag = microbatch;
    instruction.bytes = kActivationBytes;
  }

  void forward(std::int32_t mb) {
    const BufferId out = add_activation(0, BufferRole::kActivation, mb);
    saved_.push_back(add_activation(0, BufferRole::kSaved, mb));
    emit(Op::kForward, Lane::kCompute, 0, mb, {weight_[0]}, {out, saved_.back()});
    message(Op::kSendForward, 0, mb, out, true);
    emit(Op::kRelease, Lane::kComm, 0, mb, {out}, {});
    input_.push_back(add_activation(1, BufferRole::kActivation, mb));
    message(Op::kRecvForward, 1, mb, input_.back(), false);
    const BufferId loss = add_activation(1, BufferRole::kLoss, mb);
    schedule_.buffers[loss].persistent = true;
    loss_saved_.push_back(add_activation(1, BufferRole::kSaved, mb));
    emit(Op::kLoss, Lane::kCompute, 1, mb, {weight_[1], input_.back()}, {loss, loss_saved_.back()});
  }

  void backward(std::int32_t mb) {
    const auto at = static_cast<std::size_t>(mb);
    const BufferId grad = add_activation(1, BufferRole::kGradOut, mb);
    emit(Op::kBackwardInput, Lane::kCompute, 1, mb, {weight_[1], loss_saved_[at]}, {grad});
    message(Op::kSendBackward, 1, mb, grad, true);
    emit(Op::kRelease, Lane::kComm, 1, mb, {grad}, {});
    weight_gradient(1, mb, {input_[at], loss_saved_[at]});
    const BufferId received = add_activation(0, BufferRole::kGradOut, mb);
    message(Op::kRecvBackward, 0, mb, received, false);
    weight_gradient(0, mb, {saved_[at], received});
  }

  void weight_gradient(std::int32_t rank, std::int32_t mb, std::vector<BufferId> reads) {
    const BufferId fresh = add_state(rank, StateKind::kGradient, DType::kF32, mb);
    emit(Op::kBackwardWeight, Lane::kCompute, rank, mb, reads, {fresh});
    emit(Op::kRelease, Lane::kCompute, rank, mb, reads, {});
    std::vector<BufferId> sum{fresh};
    if (mb > 0) sum.push_back(gradient_[rank]);
    emit(Op::kAccumulateGrad, Lane::kOptimizer, rank, mb, sum, {gradient_[rank]});
    emit(Op::kRelease, Lane::kOptimizer, rank, mb, {fresh}, {});
  }

  void update(std::int32_t rank) {
    emit(Op::kOptimizerStep, Lane::kOptimizer, rank, -1, {gradient_[rank], weight_[rank]},
         {weight_[rank]});
  }

  Schedule schedule_;
  BufferId weight_[2]{}, gradient_[2]{};
  std::vector<BufferId> saved_, input_, loss_saved_;  // by micro-batch
};

inline Schedule two_stage_pipeline(int microbatches) {
  return PipelineExample().build(microbatches);
}

}  // namespace sluice::testing
