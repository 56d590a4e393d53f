// The combinations of pipeline orders, ranks, ZeRO stages and step options that the tests of
// pipelines go through. Each runs three steps, on one resident rank with its updates after the
// backward pass and as a pipeline, and compares terms. Half of the timings take sends as blocking.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/orders/pipeline_order.hpp"
#include "tests/support/pipeline_world.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::testing {

struct PipelineCase {
  schedule::OrderKind kind = schedule::OrderKind::kGPipe;
  std::int32_t ranks = 2;
  std::int32_t stages_each = 1;
  std::int32_t microbatches = 2;  // of a data-parallel rank
  std::int32_t data_ranks = 1;
  std::int32_t zero_stage = 0;
  schedule::UpdatePlacement update = schedule::UpdatePlacement::kAfterBackward;
  bool recompute = false;
  int placement = 0;  // everything in one tier, or 3: anything anywhere
  std::uint64_t seed = 0;

  std::string name() const {
    return std::string(schedule::order_name(kind)) + ", ranks " + std::to_string(ranks) +
           ", stages of each " + std::to_string(stages_each) + ", micro-batches " +
           std::to_string(microbatches) + ", data ranks " + std::to_string(data_ranks) +
           ", stage " + std::to_string(zero_stage) + ", update " +
           std::to_string(static_cast<int>(update)) + (recompute ? ", recompute" : "") +
           ", placement " + std::to_string(placement) + ", seed " + std::to_string(seed);
  }
};

// p in {2, 3, 4} and m from p to 3p + 1: 6 + 8 + 10 pairs.
inline constexpr std::size_t kPipelinePairs = 24;
inline constexpr std::size_t kPipelineCases =
    schedule::kOrderKindCount * kPipelinePairs * 2 * 5 * 4 * 2 * 4;

// The i-th combination; a neighbour of i differs in the order.
inline PipelineCase pipeline_case(std::size_t i) {
  PipelineCase made;
  // Drawn, so that no option goes with a digit.
  made.seed = CounterRng(i, stream_of("test/pipelines")).below(0, std::uint64_t{1} << 40);
  const auto digit = [&](std::size_t base) {
    const std::size_t value = i % base;
    i /= base;
    return static_cast<std::int32_t>(value);
  };
  made.kind = static_cast<schedule::OrderKind>(digit(schedule::kOrderKindCount));
  std::int32_t pair = digit(kPipelinePairs);
  for (made.ranks = 2; pair > 2 * made.ranks + 1; ++made.ranks) pair -= 2 * made.ranks + 2;
  made.microbatches = made.ranks + pair;
  made.stages_each = 1 + digit(2);
  // One data-parallel rank, or two with each ZeRO stage.
  const std::int32_t data = digit(5);
  made.data_ranks = data == 0 ? 1 : 2;
  made.zero_stage = data == 0 ? 0 : data - 1;
  made.update = static_cast<schedule::UpdatePlacement>(digit(4));
  made.recompute = digit(2) == 1;
  made.placement = digit(4);
  return made;
}

struct PipelineRun {
  schedule::StepModel model;
  schedule::StepOptions options;
  PipelineMesh mesh;
};

inline PipelineRun pipeline_run(const PipelineCase& at) {
  PipelineRun run;
  const std::vector<kernels::OptimizerOptions> optimizers = example_optimizers();
  // Whole-tensor rules shard at units, so a tied embedding's shards are whole or empty.
  run.model = example_model(7, at.seed % 2 == 0, at.seed % 4 == 3 ? DType::kF32 : DType::kBF16,
                            optimizers[at.seed % optimizers.size()]);
  run.mesh.order = schedule::make_order(at.kind, at.ranks, at.stages_each, at.microbatches);
  run.mesh.units = drawn_stages(run.model.units.size(), run.mesh.order.stages(), at.seed);
  run.mesh.data_ranks = at.data_ranks;
  run.mesh.zero_stage = at.zero_stage;
  run.options = random_options(run.model, at.microbatches * at.data_ranks, at.seed);
  if (at.placement < 3) {
    const auto tier = static_cast<Tier>(at.placement);
    run.options.placement = placed(run.model.units.size(), tier, tier, tier);
  }
  run.options.order = schedule::ComputeOrder::kMicrobatch;
  run.options.recompute =
      at.recompute ? random_recompute(run.model, at.seed) : schedule::Recomputation{};
  cut_segments(run.options.recompute, run.mesh.units);
  run.options.recompute_ahead = static_cast<std::int32_t>(at.seed / 3 % 4);
  run.options.update = at.update;
  run.options.carried_units = static_cast<std::int32_t>(at.seed % 3);
  // One sum; or a group for each micro-batch, and with two data-parallel ranks for each rank.
  if (at.seed % 5 == 0) run.options.fold_groups = at.data_ranks == 1 ? at.microbatches : 2;
  if (at.data_ranks > 1) {
    if (at.zero_stage < 3) {
      run.options.placement.weight.assign(run.model.units.size(), Tier::kDevice);
    }
    if (at.zero_stage < 1) {
      run.options.placement.gradient.assign(run.model.units.size(), Tier::kDevice);
    }
  }
  return run;
}

// Steps 0 to 2, of which the middle one is not accepted with a clip factor of one; all are if the
// update cannot wait for the factor. Returns the number of timings that were tried.
inline int expect_one_ranks_terms(const PipelineCase& at, std::size_t timings) {
  using schedule::StepKind;
  using schedule::UpdatePlacement;
  SCOPED_TRACE(at.name());
  const PipelineRun run = pipeline_run(at);
  const std::vector<bool> accepted{true, at.update == UpdatePlacement::kInBackward, true};
  schedule::StepOptions resident = resident_options(run.model, run.options.microbatches);
  resident.fold_groups = run.options.fold_groups;
  const schedule::Schedule plain_step = compile(run.model, resident, StepKind::kTraining);
  StepChain plain;
  for (std::size_t i = 0; i < accepted.size(); ++i) plain.pass(plain_step, i, accepted[i]);
  if (::testing::Test::HasFatalFailure()) return 0;
  const auto world = [&](StepKind kind) {
    return pipeline_world(run.model, run.options, kind, run.mesh);
  };
  const bool carries = carries_updates(run.options);
  const bool redoes = at.update == UpdatePlacement::kSpeculative;
  const schedule::Schedule steady = world(StepKind::kTraining);
  const std::vector<schedule::InterpretOptions> all = schedule::adverse_timings(at.seed, 2);
  int tried = 0;
  for (std::size_t i = 0; i < std::min(timings, all.size()); ++i) {
    // Timings with an odd number take sends as blocking; so does every other one of these.
    StepChain chain(all[(at.seed * 7 + i * 11) % all.size()]);
    for (std::size_t step = 0; step < accepted.size(); ++step) {
      chain.pass(carries && step == 0 ? world(StepKind::kFirst) : steady, step, accepted[step]);
      if (::testing::Test::HasFatalFailure()) return tried;
      if (!redoes || accepted[step]) continue;
      chain.give_up();
      chain.pass(world(StepKind::kRedo), step);
    }
    if (carries) chain.pass(world(StepKind::kDrain), accepted.size());
    if (::testing::Test::HasFatalFailure()) return tried;
    EXPECT_EQ(chain.norms, plain.norms);
    EXPECT_EQ(chain.losses, plain.losses);
    EXPECT_EQ(without_gradients(chain.exit), plain.exit);
    ++tried;
  }
  return tried;
}

}  // namespace sluice::testing
