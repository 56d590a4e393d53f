#include "engine/planner/cost_model.hpp"

#include <algorithm>
#include <optional>

namespace sluice {
namespace {

// Attention's products are small and its softmax is not a product: measured on the host kernels
// against a large GEMM of the same operations.
constexpr double kAttentionEfficiency = 0.6;
// Handing an instruction from one lane's thread to another's, measured on the host backend.
constexpr double kHandOverSeconds = 2e-5;

std::optional<Pass> pass_of(Op op) {
  switch (op) {
    case Op::kForward:
      return Pass::kForward;
    case Op::kRecompute:
      return Pass::kRecompute;
    case Op::kLoss:
      return Pass::kLoss;
    case Op::kBackwardInput:
      return Pass::kBackwardInput;
    case Op::kBackwardWeight:
      return Pass::kBackwardWeight;
    default:
      return std::nullopt;
  }
}

std::uint64_t touched_bytes(const Schedule& schedule, const Instruction& instruction) {
  std::uint64_t bytes = 0;
  for (const auto* uses : {&instruction.reads, &instruction.writes}) {
    for (const Use& use : *uses) {
      bytes += use.bytes == 0 ? schedule.buffers[use.buffer].bytes : use.bytes;
    }
  }
  return bytes;
}

// Parameters that an OptimizerStep updates: elements of its first moment.
std::uint64_t updated_elems(const Schedule& schedule, const Instruction& instruction) {
  for (const Use& use : instruction.writes) {
    const Buffer& buffer = schedule.buffers[use.buffer];
    if (buffer.kind == StateKind::kMoment1) {
      return (use.bytes == 0 ? buffer.bytes : use.bytes) / sizeof(float);
    }
  }
  return 0;
}

}  // namespace

double CostModel::pass_s(std::int32_t unit, Pass pass) const {
  const PassWork work = model_.units()[static_cast<std::size_t>(unit)].layer->work(batch_, pass);
  const double flops_per_s = batch_.dtype == DType::kF32 ? hardware_.gemm_f32_flops_per_s
                                                         : hardware_.gemm_bf16_flops_per_s;
  return work.gemm_flops / flops_per_s +
         work.attention_flops / (kAttentionEfficiency * flops_per_s) +
         work.elementwise_bytes / hardware_.memory_bandwidth_bytes_per_s;
}

double CostModel::copy_s(std::uint64_t bytes) const {
  const double memcpy_s = static_cast<double>(bytes) / hardware_.single_core_copy_bytes_per_s;
  double link_s = config_.memory.link_latency_s;
  if (config_.memory.link_bandwidth_bytes_per_s > 0) {
    link_s += static_cast<double>(bytes) / config_.memory.link_bandwidth_bytes_per_s;
  }
  return std::max(memcpy_s, link_s);
}

double CostModel::instruction_s(const Schedule& schedule, const Instruction& instruction) const {
  if (const auto pass = pass_of(instruction.op)) return pass_s(instruction.unit, *pass);
  switch (instruction.op) {
    case Op::kUpload:
    case Op::kDownload:
      return copy_s(instruction.bytes);
    case Op::kStorageRead:
      return static_cast<double>(instruction.bytes) / hardware_.storage_read_bytes_per_s;
    case Op::kStorageWrite:
      return static_cast<double>(instruction.bytes) / hardware_.storage_write_bytes_per_s;
    case Op::kOptimizerStep:
      return static_cast<double>(updated_elems(schedule, instruction)) /
             hardware_.adam_params_per_s;
    case Op::kRelease:
      return 0.0;
    default:
      return static_cast<double>(touched_bytes(schedule, instruction)) /
             hardware_.memory_bandwidth_bytes_per_s;
  }
}

void CostModel::apply(Schedule& schedule) const {
  for (Instruction& instruction : schedule.instructions) {
    const double overhead = instruction.op == Op::kRelease ? 0.0 : kHandOverSeconds;
    instruction.cost_s = overhead + instruction_s(schedule, instruction);
  }
}

SimulationModel CostModel::simulation_model() const {
  SimulationModel model;
  // On the host backend everything shares the machine's cores.
  model.cores = hardware_.cores;
  const auto use = [&](Lane lane, double cores) {
    model.cores_used[static_cast<std::size_t>(lane)] = cores;
  };
  use(Lane::kCompute, hardware_.cores);
  use(Lane::kOptimizer, hardware_.cores);
  use(Lane::kH2D, 1.0);
  use(Lane::kD2H, 1.0);
  use(Lane::kStorageRead, 0.1);
  use(Lane::kStorageWrite, 0.1);
  // Shares of the two lanes' own rates when both are busy.
  const double alone =
      std::max(hardware_.storage_read_bytes_per_s, hardware_.storage_write_bytes_per_s);
  model.storage_duplex =
      std::clamp(hardware_.storage_duplex_bytes_per_s / std::max(alone, 1.0), 0.1, 2.0);
  model.storage_depth = 8;
  return model;
}

}  // namespace sluice
