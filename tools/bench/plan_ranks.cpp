// The machine is an H100 of share/hardware with another rate of products, and links as fast between
// any two ranks. Compute and comm are the busy times of these lanes in the simulated step.
#include "tools/bench/plan_ranks.hpp"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "engine/train/plan/prepare.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr double kFlopsPerS = 4e14;
constexpr double kLinkBytesPerS = 5e10;
constexpr double kLinkLatencyS = 5e-6;
constexpr int kRanks = 8;
constexpr int kSeq = 2048;

planner::HardwareProfile machine() {
  planner::HardwareProfile hardware =
      planner::load_named_profile("h100-512g-4nvme", planner::bundled_profile_directory());
  planner::HardwareProfile gpu = *hardware.gpu;
  gpu.gemm_bf16_flops_per_s = kFlopsPerS;
  hardware.gpu = std::make_shared<const planner::HardwareProfile>(std::move(gpu));
  planner::RankLinks links;
  links.latency_s = kLinkLatencyS;
  links.bytes_per_s = kLinkBytesPerS;
  links.node_bytes_per_s = 0;
  hardware.rank_links = links;
  return hardware;
}

// The traffic of ZeRO-3 that gathers weights for both passes: 16-bit gradients and twice as many
// weights, less the rank's own shards. A plan that keeps gathered weights sends less.
double two_gathers_s(const planner::Plan& plan) {
  double elems = 0;
  for (const auto& shards : plan.view.shards) elems += static_cast<double>(shards.back().end);
  const double others = 1 - 1.0 / kRanks;
  return others * elems * (2 + 2 * 2) / kLinkBytesPerS;
}

// No order of the plan's own instructions on a rank takes less: the loss waits for the forward
// pass, for the updates that the last step left, and for one gather of each unit; all other compute
// and all exchanges wait for the loss. Precondition: a rank has one micro-batch.
double ordered_s(const planner::Plan& plan) {
  double before = 0, gathers = 0, after = 0, exchanges = 0, comm = 0;
  std::set<std::int32_t> gathered;
  for (const schedule::Instruction& instruction : plan.training().instructions) {
    const double cost = instruction.cost_s;
    if (instruction.lane == schedule::Lane::kComm) comm += cost;
    if (instruction.lane == schedule::Lane::kCompute) {
      const bool leads = instruction.op == schedule::Op::kForward ||
                         (plan.carries_updates() && instruction.op == schedule::Op::kOptimizerStep);
      (leads ? before : after) += cost;
    }
    if (instruction.op == schedule::Op::kGather && instruction.unit >= 0 &&
        gathered.insert(instruction.unit).second) {
      gathers += cost;
    }
    if (instruction.op == schedule::Op::kAllToAll) exchanges += cost;
  }
  return std::max(std::max(before, gathers) + std::max(after, exchanges), comm);
}

json planned(int micro_batch, const planner::HardwareProfile& hardware) {
  const std::vector<std::string> settings{"model.family=llama",
                                          "model.layers=32",
                                          "model.hidden=4096",
                                          "model.ffn=11008",
                                          "model.heads=32",
                                          "model.vocab=32000",
                                          "train.seq=" + std::to_string(kSeq),
                                          "train.micro_batch=" + std::to_string(micro_batch),
                                          "train.accumulate=" + std::to_string(kRanks),
                                          "parallel.data=" + std::to_string(kRanks),
                                          "parallel.zero=3"};
  const config::Config config = config::parse_config("", "bench", settings);
  const double begin_s = process_cpu_seconds();
  train::Prepared prepared = train::prepare(config, hardware, train::PlannedMachine::kProfile);
  const double cpu_s = process_cpu_seconds() - begin_s;
  const planner::Plan* plan = prepared.plan();
  if (plan == nullptr) throw InternalError("bench plan: no plan for several ranks");
  const auto& busy = plan->simulation.busy_s.front();
  const double compute_s = busy[static_cast<std::size_t>(schedule::Lane::kCompute)];
  const double comm_s = busy[static_cast<std::size_t>(schedule::Lane::kComm)];
  const double step_s = plan->simulation.total_s;
  const double traffic_s = two_gathers_s(*plan);
  return {{"tokens", micro_batch * kSeq},
          {"ranks", kRanks},
          {"step_s", step_s},
          {"compute_s", compute_s},
          {"comm_s", comm_s},
          {"traffic_s", traffic_s},
          {"over", step_s / std::max(compute_s, traffic_s) - 1},
          {"over_own", step_s / std::max(compute_s, comm_s) - 1},  // the traffic of this plan
          {"ordered_s", ordered_s(*plan)},
          {"sent_bytes", plan->ranks.front().sent.total()},
          {"cpu_s", cpu_s}};
}

}  // namespace

json measure_rank_plans() {
  const planner::HardwareProfile hardware = machine();
  return json::array({planned(8, hardware), planned(2, hardware)});
}

}  // namespace sluice::bench
