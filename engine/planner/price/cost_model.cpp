// Prices instructions by their op. Passes of layers and updates run on kernels that compute nothing
// and only add up their times (priced_kernels.hpp), once for each unit and pass. Copies and
// transfers come from the profile's grid of measured sizes, or from its plain bandwidths. Each
// instruction gets the overhead of its start on top.
#include "engine/planner/price/cost_model.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/config/shapes.hpp"
#include "engine/runtime/run_state.hpp"
#include "engine/schedule/even_parts.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::planner {
namespace {

std::uint64_t bytes_of(const schedule::Schedule& schedule, const schedule::Use& use) {
  return use.bytes == 0 ? schedule.buffers[use.buffer].bytes : use.bytes;
}

// The traffic of an instruction without a price of its own.
std::uint64_t touched_bytes(const schedule::Schedule& schedule,
                            const schedule::Instruction& instruction) {
  std::uint64_t bytes = 0;
  for (const auto* uses : {&instruction.reads, &instruction.writes}) {
    for (const schedule::Use& use : *uses) bytes += bytes_of(schedule, use);
  }
  return bytes;
}

std::int64_t elems_of(const schedule::Schedule& schedule, const schedule::Use& use) {
  const DType dtype = schedule.buffers[use.buffer].dtype;
  return static_cast<std::int64_t>(elems_in(dtype, bytes_of(schedule, use)));
}

std::int32_t ranks_of(const config::Config& config) {
  return static_cast<std::int32_t>(config.parallel.ranks());
}

// Ranks of one node keep no more cores busy than there are, so each gets its share of them.
int threads_of_rank(const config::Config& config, const HardwareProfile& hardware,
                    double node_ranks) {
  const int wanted =
      config.train.threads > 0 ? static_cast<int>(config.train.threads) : hardware.cores;
  if (node_ranks <= 1) return wanted;
  return std::min(wanted, std::max(1, static_cast<int>(hardware.cores / node_ranks)));
}

// An address for calls that only count; it is never read.
std::byte* some_address() {
  return reinterpret_cast<std::byte*>(kPageBytes);
}

}  // namespace

CostModel::CostModel(const config::Config& config, const model::Model& model,
                     const model::BatchShape& batch, const HardwareProfile& hardware)
    : config_(config),
      model_(model),
      batch_(batch),
      hardware_(hardware),
      device_(on_gpu() ? hardware.gpu_or_default() : hardware),
      world_{hardware.rank_links_or_default(), ranks_of(config),
             static_cast<double>(hardware.rank_links_or_default().ranks_of_node(ranks_of(config)))},
      threads_(threads_of_rank(config, hardware, world_.of_node)),
      table_(parameter_table(config, model)),
      kernels_(device_, on_gpu() ? device_.cores : threads_),
      host_kernels_(hardware, threads_) {}

const HardwareProfile& CostModel::hardware_of(schedule::Lane lane) const {
  return runtime::is_device_lane(lane) ? device_ : hardware_;
}

PricedKernels& CostModel::kernels_of(schedule::Lane lane) {
  return runtime::is_device_lane(lane) ? kernels_ : host_kernels_;
}

// Runs the layer once on kernels that only count, with addresses that are never read. Passes of one
// unit cost the same in every micro-batch, so each is priced once.
double CostModel::pass_s(std::int32_t unit, schedule::Op pass, schedule::PartMask remade,
                         bool makes_output, const schedule::SegmentRange& segments) {
  const auto [found, fresh] =
      pass_s_.try_emplace({unit, pass, remade, makes_output, segments.begin, segments.end}, 0.0);
  if (!fresh) return found->second;
  const model::Layer& layer = *model_.units()[static_cast<std::size_t>(unit)].layer;
  model::PassBuffers at;
  at.output = makes_output ? some_address() : nullptr;
  at.remade = remade;
  at.segments = segments;
  at.weights = at.tied_weights = at.input = at.grad_output = some_address();
  at.saved = some_address();
  at.context = at.grad_input = at.workspace = some_address();
  at.grad_weights = at.tied_grad_weights = some_address();
  kernels_.reset();
  switch (pass) {
    case schedule::Op::kForward:
      layer.forward(kernels_, batch_, at);
      break;
    case schedule::Op::kRecompute:
      layer.recompute(kernels_, batch_, at);
      break;
    case schedule::Op::kLoss:
      layer.loss(kernels_, batch_, at);
      break;
    case schedule::Op::kBackwardInput:
      layer.backward_input(kernels_, batch_, at);
      break;
    case schedule::Op::kBackwardWeight:
      layer.backward_weight(kernels_, batch_, at);
      break;
    default:
      throw InternalError("not a pass: " + std::string(schedule::op_name(pass)));
  }
  return found->second = kernels_.seconds();
}

double CostModel::pass_s(const schedule::Schedule& schedule, const schedule::Instruction& pass) {
  if (pass.op != schedule::Op::kRecompute)
    return pass_s(pass.unit, pass.op, 0, true, pass.segments);
  // Only the last segment of a pass that is cut writes the output.
  const bool makes_output =
      std::any_of(pass.writes.begin(), pass.writes.end(), [&](const schedule::Use& use) {
        return schedule.buffers[use.buffer].role == schedule::BufferRole::kActivation;
      });
  const model::Layer& layer = *model_.units()[static_cast<std::size_t>(pass.unit)].layer;
  const schedule::PartMask remade =
      schedule::saved_parts_written(schedule, pass, layer.saves(batch_, kernels_));
  return pass_s(pass.unit, pass.op, remade, makes_output, pass.segments);
}

// A lane is in order, so it waits between the segments of a pass. The cuts after the last segment
// may have their sums in parallel with another pass.
double CostModel::waits_between_segments_s(const schedule::PassSegments& segments) const {
  const auto ranks = static_cast<std::int32_t>(config_.parallel.inner_ranks());
  double seconds = 0;
  for (std::size_t segment = 0; ranks > 1 && segment + 1 < segments.size(); ++segment) {
    for (const schedule::Cut& cut : segments[segment]) {
      const std::uint64_t own =
          bytes_of(cut.dtype, schedule::even_part(cut.elems, ranks, ranks - 1).elems());
      const std::uint64_t bytes =
          schedule::inner_bytes(cut.kind, cut.bytes(), own, static_cast<std::uint64_t>(ranks));
      seconds += inner_s(ranks, static_cast<double>(bytes));
    }
  }
  return seconds;
}

CostModel::UnitPasses CostModel::unit_passes(std::int32_t unit) {
  const model::Unit& of = model_.units()[static_cast<std::size_t>(unit)];
  const schedule::UnitSegments segments = of.layer->needs(batch_, kernels_).segments;
  UnitPasses passes;
  passes.forward_s =
      pass_s(unit, of.is_head ? schedule::Op::kLoss : schedule::Op::kForward, 0, true);
  if (of.has_input) passes.backward_input_s = pass_s(unit, schedule::Op::kBackwardInput, 0, true);
  passes.backward_weight_s = pass_s(unit, schedule::Op::kBackwardWeight, 0, true);
  passes.forward_s += waits_between_segments_s(of.is_head ? segments.loss : segments.forward);
  if (of.has_input) passes.backward_input_s += waits_between_segments_s(segments.backward_input);
  passes.backward_weight_s += waits_between_segments_s(segments.backward_weight);
  return passes;
}

double CostModel::recompute_s(const schedule::Recomputation& recompute) {
  double seconds = 0;
  for (std::size_t i = 0; i < recompute.units.size(); ++i) {
    const auto unit = static_cast<std::int32_t>(i);
    if (!recompute.recomputes(unit)) continue;
    const schedule::UnitRecompute& of = recompute.units[i];
    const auto run_s = [&](bool makes_output) {
      return least_overhead_s() + pass_s(unit, schedule::Op::kRecompute, of.parts, makes_output);
    };
    if (of.parts_run > 1) seconds += (of.parts_run - 1) * run_s(true);
    seconds += run_s(of.output_run >= of.parts_run);
  }
  return seconds;
}

// A state that an update reads in one place and writes in another is copied first.
void CostModel::price_copies(PricedKernels& kernels, const schedule::Schedule& schedule,
                             const schedule::Instruction& instruction) {
  for (const schedule::Use& from : instruction.reads) {
    const schedule::Buffer& found = schedule.buffers[from.buffer];
    const bool elsewhere =
        found.role == schedule::BufferRole::kState &&
        std::any_of(
            instruction.writes.begin(), instruction.writes.end(), [&](const schedule::Use& to) {
              return schedule.buffers[to.buffer].kind == found.kind && to.buffer != from.buffer;
            });
    if (!elsewhere) continue;
    const auto words = static_cast<std::int64_t>(bytes_of(schedule, from) / sizeof(float));
    kernels.cast(nullptr, DType::kF32, nullptr, DType::kF32, false, words);
  }
}

// Prices sums, norms and updates of a range of one unit's state by the kernels of its lane.
double CostModel::state_operation_s(const schedule::Schedule& schedule,
                                    const schedule::Instruction& instruction) {
  PricedKernels& kernels = kernels_of(instruction.lane);
  kernels.reset();
  // The first use that each of them reads; it prices all ops but the optimizer step.
  const schedule::Use& gradient = instruction.reads.front();
  const DType dtype = schedule.buffers[gradient.buffer].dtype;
  const std::int64_t elems = elems_of(schedule, gradient);
  switch (instruction.op) {
    case schedule::Op::kAccumulateGrad:
      kernels.accumulate(nullptr, nullptr, dtype, false, elems);
      break;
    case schedule::Op::kFoldGrad:
      kernels.fold(nullptr, nullptr, dtype, elems);
      break;
    case schedule::Op::kGradNorm: {
      const kernels::Kernels::Block all{0, elems};
      kernels.squared_norm_blocks(nullptr, dtype, DType::kF32, {&all, 1}, nullptr);
      break;
    }
    default: {
      SLUICE_CHECK(instruction.op == schedule::Op::kOptimizerStep);
      kernels::UpdateBuffers buffers;
      buffers.grad_dtype = dtype;
      buffers.elems = elems;
      const schedule::ElemRange range =
          sluice::schedule::elems_of(schedule.buffers[gradient.buffer], gradient);
      const auto segments =
          table_.segments(static_cast<std::size_t>(instruction.unit), range.begin, range.end);
      kernels.update(table_.options(), buffers, segments, {}, nullptr);
      price_copies(kernels, schedule, instruction);
      break;
    }
  }
  return kernels.seconds();
}

// Between pinned memory and the device. A grid holds for both directions.
double CostModel::memcpy_s(schedule::Lane lane, std::uint64_t bytes) const {
  const OperationGrid* const grid = device_.find(TimedOperation::kCopy, DType::kU8);
  if (grid != nullptr) return grid->seconds_at({static_cast<std::int64_t>(bytes), 1, 1});
  const double directed =
      lane == schedule::Lane::kH2D ? device_.h2d_bytes_per_s : device_.d2h_bytes_per_s;
  return static_cast<double>(bytes) /
         (directed > 0 ? directed : device_.single_core_copy_bytes_per_s);
}

// The time on a made-up link (memory.link_bandwidth), which only the host device has.
double CostModel::link_s(std::uint64_t bytes) const {
  const double bandwidth = config_.memory.link_bandwidth_bytes_per_s;
  return config_.memory.link_latency_s +
         (bandwidth > 0 ? static_cast<double>(bytes) / bandwidth : 0.0);
}

// A copy takes as long as the slower of memory and link.
double CostModel::copy_s(schedule::Lane lane, std::uint64_t bytes) const {
  return std::max(memcpy_s(lane, bytes), link_s(bytes));
}

// One transfer alone. The simulator shares the bandwidth when several are in flight.
double CostModel::transfer_s(TimedOperation operation, std::uint64_t bytes) const {
  const OperationGrid* const grid = hardware_.find(operation, DType::kU8);
  if (grid != nullptr) return grid->seconds_at({static_cast<std::int64_t>(bytes), 1, 1});
  return hardware_.storage_latency_s +
         static_cast<double>(bytes) / (operation == TimedOperation::kStorageRead
                                           ? hardware_.storage_read_bytes_per_s
                                           : hardware_.storage_write_bytes_per_s);
}

// Two exchanges, of which each moves about half of the bytes, and a reduction between them.
double CostModel::inner_s(std::int32_t ranks, double bytes) const {
  return 2 * world_.links.collective_s(ranks, bytes / 2) +
         bytes / hardware_of(schedule::Lane::kInner).memory_bandwidth_bytes_per_s;
}

// Ranks send and receive at once, so the larger of both amounts counts on each kind of link. A part of
// the rank's own stays where it is or is copied meanwhile.
double CostModel::collective_s(const schedule::Schedule& schedule,
                               const schedule::Instruction& instruction) const {
  const std::int32_t self = schedule::world_rank_of(schedule, instruction.rank);
  const auto& group = schedule.groups[static_cast<std::size_t>(instruction.group)];
  if (instruction.lane == schedule::Lane::kInner) {
    if (instruction.reduction == schedule::CutKind::kRing) {
      // One message, and a copy into its place.
      RankLinks::Messages hop;
      hop.node_peers = 1;
      hop.node_bytes = static_cast<double>(instruction.bytes);
      return world_.links.messages_s(static_cast<std::int32_t>(group.ranks.size()), hop) +
             hop.node_bytes / hardware_of(instruction.lane).memory_bandwidth_bytes_per_s;
    }
    return inner_s(static_cast<std::int32_t>(group.ranks.size()),
                   static_cast<double>(instruction.bytes));
  }
  struct Bytes {
    std::uint64_t sent = 0, received = 0;
  };
  std::map<std::int32_t, Bytes> peers;
  for (const schedule::Use& part : instruction.writes) {
    if (part.peer != self) peers[part.peer].received += bytes_of(schedule, part);
  }
  for (const schedule::Use& part : instruction.reads) {
    if (part.peer >= 0) {
      if (part.peer != self) peers[part.peer].sent += bytes_of(schedule, part);
      continue;
    }
    for (const std::int32_t rank : group.ranks) {
      if (rank != self) peers[rank].sent += bytes_of(schedule, part);
    }
  }
  std::array<Bytes, 2> moved;  // inside the node, and between nodes
  RankLinks::Messages messages;
  for (const auto& [rank, bytes] : peers) {
    const bool near = world_.links.share_node(self, rank);
    ++(near ? messages.node_peers : messages.network_peers);
    moved[near ? 0 : 1].sent += bytes.sent;
    moved[near ? 0 : 1].received += bytes.received;
  }
  messages.node_bytes = static_cast<double>(std::max(moved[0].sent, moved[0].received));
  messages.network_bytes = static_cast<double>(std::max(moved[1].sent, moved[1].received));
  // All places of a tensor group have such a group of their own, at the same time.
  const auto at_once = static_cast<std::int64_t>(group.ranks.size()) * config_.parallel.tensor *
                       config_.parallel.context;
  return world_.links.messages_s(static_cast<std::int32_t>(at_once), messages);
}

double CostModel::instruction_s(const schedule::Schedule& schedule,
                                const schedule::Instruction& instruction) {
  switch (instruction.op) {
    case schedule::Op::kForward:
    case schedule::Op::kRecompute:
    case schedule::Op::kLoss:
    case schedule::Op::kBackwardInput:
    case schedule::Op::kBackwardWeight:
      return pass_s(schedule, instruction);
    case schedule::Op::kUpload:
    case schedule::Op::kDownload:
    case schedule::Op::kSpillActivation:
    case schedule::Op::kFetchActivation:
      return copy_s(instruction.lane, instruction.bytes);
    case schedule::Op::kStorageRead:
      return transfer_s(TimedOperation::kStorageRead, instruction.bytes);
    case schedule::Op::kStorageWrite:
      return transfer_s(TimedOperation::kStorageWrite, instruction.bytes);
    case schedule::Op::kAccumulateGrad:
    case schedule::Op::kFoldGrad:
    case schedule::Op::kGradNorm:
    case schedule::Op::kOptimizerStep:
      return state_operation_s(schedule, instruction);
    case schedule::Op::kCommit:
      // The flush of the data, the record, and its flush.
      return 3 * transfer_s(TimedOperation::kStorageWrite, 4096);
    case schedule::Op::kGather:
    case schedule::Op::kReduceScatter:
    case schedule::Op::kAllReduce:
    case schedule::Op::kAllToAll:
      return collective_s(schedule, instruction);
    case schedule::Op::kSendForward:
    case schedule::Op::kSendBackward:
      return world_.links.message_s(
          world_.ranks,
          static_cast<std::int32_t>(config_.parallel.ranks() / config_.parallel.pipeline),
          static_cast<double>(instruction.bytes));
    case schedule::Op::kRelease:
      return 0.0;
    default:
      return static_cast<double>(touched_bytes(schedule, instruction)) /
             hardware_of(instruction.lane).memory_bandwidth_bytes_per_s;
  }
}

// The delay before an instruction's own work: small within a lane, a wake-up across lanes. The
// measured time of a transfer includes the wake-up of its waiter.
double CostModel::overhead_s(const schedule::Schedule& schedule,
                             const schedule::Instruction& instruction) const {
  if (instruction.op == schedule::Op::kRelease) return 0.0;
  const bool woken = std::any_of(
      instruction.deps.begin(), instruction.deps.end(), [&](schedule::InstructionId dep) {
        const schedule::Instruction& awaited = schedule.instructions[dep];
        return awaited.op != schedule::Op::kRelease && awaited.lane != instruction.lane &&
               !schedule::lane_is_pipelined(awaited.lane);
      });
  const HardwareProfile& hardware = hardware_of(instruction.lane);
  return woken ? hardware.hand_over_s : hardware.launch_overhead_s;
}

// The part of overhead_s() that every pass takes, even one that waits for nothing.
double CostModel::least_overhead_s() const {
  return std::min(device_.launch_overhead_s, device_.hand_over_s);
}

// Work on state per element is cheapest at some size of piece; the least rate bounds every plan.
StepRates::StateWork CostModel::state_work(PricedKernels& kernels) {
  constexpr std::int64_t kSmallest = std::int64_t{1} << 16;
  constexpr std::int64_t kLargest = std::int64_t{1} << 26;
  const DType dtype = batch_.dtype;
  const auto least = [&](std::int64_t total, const auto& call) {
    double best = std::numeric_limits<double>::infinity();
    for (std::int64_t elems = kSmallest; elems <= kLargest; elems *= 2) {
      kernels.reset();
      call(elems);
      best = std::min(best, kernels.seconds() / static_cast<double>(elems));
    }
    return best * static_cast<double>(total);
  };
  StepRates::StateWork work;
  // A rank of a tensor group works on its own parts.
  std::uint64_t own = 0;
  for (std::size_t unit = 0; unit < model_.unit_count(); ++unit) {
    for (const model::PlacedTensor& tensor : model_.layout(unit).tensors()) {
      own += tensor.spec.elems();
    }
  }
  const auto total = static_cast<std::int64_t>(own);
  work.accumulate_s = least(total, [&](std::int64_t elems) {
    kernels.accumulate(nullptr, nullptr, dtype, false, elems);
  });
  work.norm_s = least(total, [&](std::int64_t elems) {
    const kernels::Kernels::Block all{0, elems};
    kernels.squared_norm_blocks(nullptr, dtype, DType::kF32, {&all, 1}, nullptr);
  });
  work.update_s = least(total, [&](std::int64_t elems) {
    kernels::UpdateBuffers buffers;
    buffers.grad_dtype = dtype;
    buffers.elems = elems;
    kernels.update(table_.options(), buffers, {}, {}, nullptr);
  });
  return work;
}

StepRates CostModel::rates() {
  StepRates rates;
  for (std::size_t i = 0; i < model_.units().size(); ++i) {
    const auto unit = static_cast<std::int32_t>(i);
    const model::Unit& of = model_.units()[i];
    const auto add = [&](double& seconds, schedule::Op pass) {
      seconds += least_overhead_s() + pass_s(unit, pass, 0, true);
    };
    add(rates.forward_s, of.is_head ? schedule::Op::kLoss : schedule::Op::kForward);
    if (of.has_input) add(rates.backward_s, schedule::Op::kBackwardInput);
    add(rates.backward_s, schedule::Op::kBackwardWeight);
  }
  rates.copy_s = std::numeric_limits<double>::infinity();
  for (std::uint64_t bytes = 64 * kKiB; bytes <= kGiB; bytes *= 2) {
    const double one_way =
        std::min(copy_s(schedule::Lane::kH2D, bytes), copy_s(schedule::Lane::kD2H, bytes));
    rates.copy_s = std::min(rates.copy_s, one_way / static_cast<double>(bytes));
  }
  rates.storage_read_s = world_.of_node / hardware_.storage_read_bytes_per_s;
  rates.storage_write_s = world_.of_node / hardware_.storage_write_bytes_per_s;
  rates.comm_s = world_.links.byte_s(world_.ranks);
  rates.host = state_work(host_kernels_);
  rates.device = state_work(kernels_);
  return rates;
}

void CostModel::apply(schedule::Schedule& schedule) {
  for (schedule::Instruction& instruction : schedule.instructions) {
    instruction.cost_s = overhead_s(schedule, instruction) + instruction_s(schedule, instruction);
  }
}

schedule::SimulationModel CostModel::simulation_model() const {
  schedule::SimulationModel model;
  // On the host backend everything shares the machine's cores; a GPU computes and copies alone.
  model.cores = hardware_.cores / world_.of_node;
  const auto use = [&](schedule::Lane lane, double cores) {
    model.cores_used[static_cast<std::size_t>(lane)] = cores;
  };
  const double team = std::min(hardware_.cores, threads_);
  use(schedule::Lane::kOptimizer, team);
  if (!on_gpu()) {
    use(schedule::Lane::kCompute, team);
    // Waiting for a slow link leaves the core to others.
    constexpr std::uint64_t kTypicalCopy = kMiB;
    const double copying =
        memcpy_s(schedule::Lane::kH2D, kTypicalCopy) / copy_s(schedule::Lane::kH2D, kTypicalCopy);
    use(schedule::Lane::kH2D, copying);
    use(schedule::Lane::kD2H, copying);
  }
  use(schedule::Lane::kStorageRead, 0.1);
  use(schedule::Lane::kStorageWrite, 0.1);
  // A transfer over TCP keeps a core busy for a fifth of its time, as measured on the loopback.
  if (!on_gpu() && world_.ranks > 1) {
    for (const schedule::Lane lane :
         {schedule::Lane::kComm, schedule::Lane::kInner, schedule::Lane::kSend}) {
      use(lane, 0.2);
    }
  }
  model.storage_read_bytes_per_s = hardware_.storage_read_bytes_per_s / world_.of_node;
  model.storage_write_bytes_per_s = hardware_.storage_write_bytes_per_s / world_.of_node;
  model.storage_overlap = hardware_.storage_overlap;
  // In duplex either lane moves half of the bytes.
  const double each = hardware_.storage_duplex_bytes_per_s / 2;
  model.storage_duplex = std::clamp(
      each / hardware_.storage_read_bytes_per_s + each / hardware_.storage_write_bytes_per_s, 0.1,
      2.0);
  model.storage_depth = 8;
  return model;
}

}  // namespace sluice::planner
