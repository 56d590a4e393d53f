// Steps of pipelines: the terms of one rank's step, the bytes between stages, and the faults that
// validate names.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/orders/order_times.hpp"
#include "engine/schedule/simulate/simulate.hpp"
#include "tests/engine/schedule/pipeline/pipeline_matrix.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// A sample of the combinations; pipeline_sweep.cpp runs many more.
TEST(Pipeline, AnyOrderOnAnyNumberOfRanksMakesOneRanksTerms) {
  constexpr std::size_t kStride = 1381;  // coprime to every digit of the combinations
  int tried = 0;
  for (std::size_t i = 0; i < sweep(48); ++i) {
    tried += expect_one_ranks_terms(pipeline_case(i * kStride % kPipelineCases), 2);
    if (HasFailure()) return;
  }
  EXPECT_GE(tried, static_cast<int>(2 * sweep(48)));
}

PipelineMesh mesh_of(const PipelineOrder& order, const StepModel& model) {
  return {order, drawn_stages(model.units.size(), order.stages(), 5)};
}

TEST(Pipeline, EvaluatesWithOneRanksLoss) {
  for (const bool tied : {false, true}) {
    for (const PipelineOrder& order :
         {make_1f1b_order(3, 4), make_interleaved_order(2, 2, 4), make_zb_v_order(3, 4)}) {
      const StepModel model = example_model(6, tied, DType::kBF16);
      const StepOptions options = resident_options(model, 4);
      const Interpretation plain = interpret(compile(model, options, StepKind::kEvaluation));
      const Schedule world =
          pipeline_world(model, options, StepKind::kEvaluation, mesh_of(order, model));
      ASSERT_EQ(joined(validate(world)), "");
      const Interpretation values = interpret(world);
      ASSERT_EQ(joined(values.errors), "");
      EXPECT_EQ(values.losses, plain.losses);
    }
  }
}

// Each border between ranks is crossed by an output and a gradient of it for each micro-batch.
TEST(Pipeline, SendsEachOutputAndItsGradientOnce) {
  const StepModel model = example_model(6, false, DType::kBF16);
  for (std::size_t k = 0; k < kOrderKindCount; ++k) {
    const PipelineOrder order = make_order(static_cast<OrderKind>(k), 3, 2, 5);
    const PipelineMesh mesh = mesh_of(order, model);
    const Schedule world =
        pipeline_world(model, resident_options(model, 5), StepKind::kTraining, mesh);
    std::uint64_t crossing = 0;
    for (std::int32_t stage = 0; stage + 1 < order.stages(); ++stage) {
      if (order.rank_of(stage) == order.rank_of(stage + 1)) continue;
      const std::int32_t unit = mesh.units[static_cast<std::size_t>(stage)].end - 1;
      crossing += 2 * 5 * model.units[static_cast<std::size_t>(unit)].output_bytes;
    }
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (std::int32_t rank = 0; rank < world.ranks; ++rank) {
      const auto bytes = message_bytes(world, rank);
      sent += bytes[static_cast<std::size_t>(Lane::kSend)].sent;
      received += bytes[static_cast<std::size_t>(Lane::kReceive)].received;
    }
    EXPECT_EQ(sent, crossing) << order_name(static_cast<OrderKind>(k));
    EXPECT_EQ(received, crossing);
  }
}

// The sum of the tied use travels in fp32, the weights of the embedding's unit come back in 16
// bits. In a V shape both ends are on one rank.
TEST(Pipeline, SendsATiedSumOnceAndTheWeightsBack) {
  const StepModel model = example_model(6, true, DType::kBF16);
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kStorage}) {
    for (const PipelineOrder& order : {make_1f1b_order(3, 4), make_zb_v_order(3, 4)}) {
      StepOptions options = example_options(model, tier, tier, tier);
      options.microbatches = 4;
      const Schedule world =
          pipeline_world(model, options, StepKind::kTraining, mesh_of(order, model));
      ASSERT_EQ(joined(validate(world)), "");
      std::uint64_t sums = 0;
      std::uint64_t weights = 0;
      for (const Instruction& instruction : world.instructions) {
        if (instruction.op == Op::kAllToAll) sums += instruction.bytes;
        if (instruction.op == Op::kGather && instruction.unit == 0) weights += instruction.bytes;
      }
      const bool crosses = order.stages() == 3;
      EXPECT_EQ(sums, crosses ? 4 * model.tied_elems : 0);
      EXPECT_EQ(weights, crosses ? 2 * model.units[0].elems : 0);
    }
  }
}

// Every rank of a pipeline keeps the state of its own units, and nothing else.
TEST(Pipeline, KeepsTheStateOfOwnUnitsAlone) {
  const StepModel model = example_model(6, false, DType::kBF16);
  const PipelineMesh mesh = mesh_of(make_interleaved_order(2, 2, 4), model);
  const StepOptions options = resident_options(model, 4);
  std::vector<int> homes(model.units.size());
  for (const Schedule& list : lists_of_pipeline(model, options, StepKind::kTraining, mesh)) {
    for (const Residency& residency : list.entry) {
      if (residency.kind == StateKind::kWeight) ++homes[static_cast<std::size_t>(residency.unit)];
    }
  }
  EXPECT_EQ(homes, std::vector<int>(model.units.size(), 1));
}

// Where passes cost one unit of time, or two if they are whole backward passes, and nothing else
// costs anything, the compiled world takes the time of the order's passes alone.
TEST(Pipeline, TakesTheTimeOfItsOrder) {
  const StepModel model = example_model(7, false, DType::kBF16);
  const std::vector<std::uint64_t> unit_costs{0, 1, 1, 1, 1, 1, 1, 1, 1};
  for (std::size_t k = 0; k < kOrderKindCount; ++k) {
    const PipelineOrder order = make_order(static_cast<OrderKind>(k), 4, 2, 9);
    const PipelineMesh mesh{order, parallel::cut_stages(unit_costs, order.stages())};
    Schedule world = pipeline_world(model, resident_options(model, 9), StepKind::kTraining, mesh);
    std::vector<bool> ends(model.units.size());
    std::vector<bool> begins(model.units.size());
    for (const UnitRange& range : mesh.units) {
      begins[static_cast<std::size_t>(range.begin)] = true;
      ends[static_cast<std::size_t>(range.end - 1)] = true;
    }
    const bool whole = order.actions[0].back().kind == ActionKind::kBackward;
    for (Instruction& instruction : world.instructions) {
      const auto unit = static_cast<std::size_t>(std::max(instruction.unit, 0));
      const bool forward = instruction.op == Op::kForward || instruction.op == Op::kLoss;
      if (forward && ends[unit]) instruction.cost_s = 1;
      if (instruction.op == Op::kBackwardInput && ends[unit]) instruction.cost_s = whole ? 2 : 1;
      if (instruction.op == Op::kBackwardWeight && begins[unit] && !whole) instruction.cost_s = 1;
    }
    EXPECT_NEAR(simulate(world, {}).total_s, static_cast<double>(time_order(order, {}).makespan),
                1e-9)
        << order_name(static_cast<OrderKind>(k));
  }
}

// Forward, recomputation and both halves of backward cost one unit of time for each block. A stage
// waits for its first gradients, and for each of the last ones. Made ahead, recomputation takes
// that time; otherwise only that of the stage's last block does. A stage's gradient leaves in front
// of the weight gradient of its first block, so a stage waits for one unit of time less.
TEST(Pipeline, RecomputesAheadInTheBubble) {
  constexpr std::int32_t kRanks = 4;
  constexpr std::int32_t kMicrobatches = 8;
  constexpr std::int32_t kBlocks = 3;  // of a stage
  const StepModel model = example_model(kRanks * kBlocks, false, DType::kBF16);
  std::vector<std::uint64_t> unit_costs(model.units.size(), 1);
  unit_costs.front() = unit_costs.back() = 0;
  const PipelineMesh mesh{make_1f1b_order(kRanks, kMicrobatches),
                          parallel::cut_stages(unit_costs, kRanks)};
  const auto seconds = [&](std::int32_t ahead) {
    StepOptions options = resident_options(model, kMicrobatches);
    options.recompute = recompute_units(model);
    options.recompute_ahead = ahead;
    Schedule world = pipeline_world(model, options, StepKind::kTraining, mesh);
    EXPECT_EQ(joined(validate(world)), "");
    for (Instruction& instruction : world.instructions) {
      const bool is_pass = instruction.op == Op::kForward || instruction.op == Op::kRecompute ||
                           instruction.op == Op::kBackwardInput ||
                           instruction.op == Op::kBackwardWeight;
      if (is_pass) {
        instruction.cost_s =
            static_cast<double>(unit_costs[static_cast<std::size_t>(instruction.unit)]);
      }
    }
    return simulate(world, {}).total_s;
  };
  const double work = kMicrobatches * 4 * kBlocks;
  EXPECT_NEAR(seconds(0), work + (kRanks - 1) * (4 * kBlocks - 2), 1e-9);
  EXPECT_NEAR(seconds(2), work + (kRanks - 1) * (4 * kBlocks - 3), 1e-9);
  EXPECT_NEAR(seconds(kBlocks), work + (kRanks - 1) * (3 * kBlocks - 1), 1e-9);
}

// The saved values of a stage's last unit live from its forward pass to the end of its backward
// passes.
TEST(Pipeline, KeepsAsManyMicrobatchesInFlightAsItsOrder) {
  const StepModel model = example_model(6, false, DType::kBF16);
  for (const OrderKind kind :
       {OrderKind::kGPipe, OrderKind::k1F1B, OrderKind::kZbH1, OrderKind::kZbH2}) {
    const PipelineOrder order = make_order(kind, 4, 1, 8);
    const PipelineMesh mesh = mesh_of(order, model);
    const Schedule world =
        pipeline_world(model, resident_options(model, 8), StepKind::kTraining, mesh);
    std::vector<std::int32_t> live(4);
    std::vector<std::int32_t> most(4);
    const auto counted = [&](const Use& use) {
      const Buffer& buffer = world.buffers[use.buffer];
      const UnitRange& units = mesh.units[static_cast<std::size_t>(buffer.rank)];
      return buffer.role == BufferRole::kSaved && buffer.unit == units.end - 1;
    };
    for (const Instruction& instruction : world.instructions) {
      const auto rank = static_cast<std::size_t>(instruction.rank);
      for (const Use& use : instruction.writes) live[rank] += counted(use) ? 1 : 0;
      most[rank] = std::max(most[rank], live[rank]);
      if (instruction.op != Op::kRelease) continue;
      for (const Use& use : instruction.reads) live[rank] -= counted(use) ? 1 : 0;
    }
    EXPECT_EQ(most, most_in_flight(order)) << order_name(kind);
  }
}

// --- refusals ------------------------------------------------------------------------------------

Schedule small_world() {
  const StepModel model = example_model(2, false, DType::kBF16);
  return pipeline_world(model, resident_options(model, 3), StepKind::kTraining,
                        mesh_of(make_1f1b_order(2, 3), model));
}

TEST(PipelineFaults, AreNamed) {
  ASSERT_EQ(joined(validate(small_world())), "");
  const auto damaged = [](auto change) {
    Schedule world = small_world();
    change(world);
    return joined(validate(world));
  };
  const auto first = [](Schedule& world, Op op) -> Instruction& {
    return *std::find_if(world.instructions.begin(), world.instructions.end(),
                         [&](const Instruction& i) { return i.op == op; });
  };
  EXPECT_TRUE(
      holds(damaged([&](Schedule& w) { ++first(w, Op::kSendForward).tag; }), "has no matching"));
  EXPECT_TRUE(
      holds(damaged([&](Schedule& w) { first(w, Op::kSendForward).peer = 0; }), "has no peer"));
  EXPECT_TRUE(holds(damaged([&](Schedule& w) { first(w, Op::kRecvForward).unit = 0; }),
                    "is received as another value"));
  EXPECT_TRUE(holds(damaged([&](Schedule& w) {
                      for (Instruction& i : w.instructions) {
                        if (i.op != Op::kRecvForward || i.microbatch > 1) continue;
                        i.microbatch = 1 - i.microbatch;
                      }
                    }),
                    "of micro-batch 0"));
}

}  // namespace
}  // namespace sluice::schedule
