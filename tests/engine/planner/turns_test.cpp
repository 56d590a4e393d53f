// Two micro-batches whose pass segments are interleaved: the sums of a tensor group hide behind the
// compute of the other one, and the planner interleaves them where they are faster.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/config/shapes.hpp"
#include "engine/schedule/compile/compute_items.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/training_example.hpp"
#include "tests/support/whole_world.hpp"

namespace sluice::planner {
namespace {

using namespace testing;
using schedule::Lane;
using schedule::Op;

config::Config tensor_config(const Overrides& more) {
  static const TrainingBench bench;
  return bench.config(
      "run", Overrides{"model.family=llama", "model.layers=8", "model.hidden=64", "model.heads=4",
                       "model.vocab=256", "train.seq=32", "train.micro_batch=4",
                       "train.accumulate=4", "parallel.tensor=2"} +
                 more);
}

Plan tensor_plan(const config::Config& config, const HardwareProfile& hardware = {}) {
  static const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  auto result =
      make_plan(config, model::Model(config::model_shape(config), config::tensor_share(config, 0)),
                *kernels, hardware);
  if (const auto* refusal = std::get_if<Refusal>(&result)) throw InputError(refusal->sentence());
  return std::get<Plan>(std::move(result));
}

// The lists of all ranks with these options.
std::vector<Plan> rank_plans_with(const config::Config& config,
                                  const schedule::StepOptions& options) {
  static const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  std::vector<Plan> plans;
  for (int rank = 0; rank < static_cast<int>(config.parallel.tensor); ++rank) {
    const model::Model model(config::model_shape(config), config::tensor_share(config, rank));
    plans.push_back(plan_rank(config, model, *kernels, HardwareProfile{}, options, rank));
  }
  return plans;
}

// Whether a layer's products are in it. The end of a pass after its last sum has none.
bool works(const schedule::Instruction& instruction) {
  switch (instruction.op) {
    case Op::kForward:
    case Op::kBackwardInput:
      return instruction.segments.end < schedule::SegmentRange().end;
    case Op::kRecompute:
    case Op::kLoss:
    case Op::kBackwardWeight:
      return true;
    default:
      return false;
  }
}

// The part of the time of all sums that some segment computes alongside, where a segment takes
// `ratio` times as long as a layer's largest sum, and nothing else takes time.
double hidden_part(const std::vector<Plan>& plans, double ratio) {
  std::vector<schedule::Schedule> lists;
  for (const Plan& plan : plans) lists.push_back(plan.training());
  schedule::Schedule world = schedule::merge(lists);
  std::uint64_t largest = 0;
  for (const schedule::Instruction& instruction : world.instructions) {
    if (instruction.op == Op::kAllReduce) largest = std::max(largest, instruction.bytes);
  }
  for (schedule::Instruction& instruction : world.instructions) {
    instruction.cost_s = 0;
    if (instruction.op == Op::kAllReduce) {
      instruction.cost_s = static_cast<double>(instruction.bytes);
    } else if (works(instruction)) {
      instruction.cost_s = ratio * static_cast<double>(largest);
    }
  }
  const schedule::Simulation found = schedule::simulate(world, {});
  const auto busy = [&](Lane lane) { return found.busy_s[0][static_cast<std::size_t>(lane)]; };
  return 1 - (found.total_s - busy(Lane::kCompute)) / busy(Lane::kInner);
}

TEST(Turns, SumsHideBehindTheOtherMicrobatch) {
  for (const char* recompute : {"recompute.policy=none", "recompute.policy=unit"}) {
    for (const char* order : {"train.order=microbatch", "train.order=unit"}) {
      SCOPED_TRACE(std::string(recompute) + ", " + order);
      const config::Config config = tensor_config({recompute, order});
      schedule::StepOptions options = tensor_plan(config).options;
      options.turns = 1;
      const double without = hidden_part(rank_plans_with(config, options), 1.5);
      options.turns = 2;
      const std::vector<Plan> plans = rank_plans_with(config, options);
      expect_world_holds(plans, config);
      EXPECT_GE(hidden_part(plans, 1.5), 0.9);
      EXPECT_LT(without, 0.6);
    }
  }
}

TEST(Turns, ArePlannedWhereTheyAreFaster) {
  const config::Config config = tensor_config({"recompute.policy=none"});
  HardwareProfile hardware;
  hardware.cores = 16;
  hardware.launch_overhead_s = hardware.hand_over_s = 1e-9;
  hardware.rank_links = RankLinks{};
  hardware.rank_links->latency_s = 1e-9;
  hardware.rank_links->node_bytes_per_s = 0;
  hardware.rank_links->bytes_per_s = 1e9;
  const Plan plan = tensor_plan(config, hardware);
  EXPECT_EQ(plan.options.turns, 2);
}

TEST(Turns, AreRefusedWithoutATensorGroup) {
  const config::Config config = tensor_config({"parallel.tensor=1", "parallel.data=2"});
  schedule::StepOptions options = tensor_plan(config).options;
  options.turns = 2;
  EXPECT_THROW(rank_plans_with(config, options), InputError);
}

}  // namespace
}  // namespace sluice::planner
