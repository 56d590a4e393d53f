// Meshes of tensor and context groups with data-parallel ranks, pipelines and step options, as
// terms. The units are those of real layers. Each mesh runs three steps, and so does one group
// alone with all state on the device; the terms are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/parameter_table.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/orders/pipeline_order.hpp"
#include "tests/support/pipeline_world.hpp"
#include "tests/support/rank_world.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::testing {

// Ranks of a grid have both a part of each unit and a part of each sequence.
enum class GroupStyle : std::uint8_t {
  kTensor,
  kRows,
  kContext,
  kSharedHeads,
  kRing,
  kGrid,
  kGridRing
};
inline constexpr std::size_t kGroupStyles = 7;

struct TensorWorld {
  std::int32_t group = 2;  // ranks
  GroupStyle style = GroupStyle::kTensor;
  std::int32_t data = 1;
  std::int32_t pipeline = 1;
  std::int32_t zero = 0;
  schedule::UpdatePlacement update = schedule::UpdatePlacement::kAfterBackward;
  bool recompute = false;
  int placement = 0;  // everything in one tier, or 3: anything anywhere
  std::uint64_t seed = 0;

  std::int32_t ranks() const { return group * data * pipeline; }
  bool is_ring() const { return style == GroupStyle::kRing || style == GroupStyle::kGridRing; }
  std::int32_t contexts() const {
    switch (style) {
      case GroupStyle::kContext:
      case GroupStyle::kRing:
        return group;
      case GroupStyle::kGrid:
      case GroupStyle::kGridRing:
        return group == 8 && seed % 5 < 3 ? 4 : 2;
      default:
        return 1;
    }
  }
  std::int32_t parts() const { return group / contexts(); }
  std::string name() const {
    return "group of " + std::to_string(group) + ", style " +
           std::to_string(static_cast<int>(style)) + ", data " + std::to_string(data) +
           ", pipeline " + std::to_string(pipeline) + ", stage " + std::to_string(zero) +
           ", update " + std::to_string(static_cast<int>(update)) +
           (recompute ? ", recompute" : "") + ", placement " + std::to_string(placement) +
           ", seed " + std::to_string(seed);
  }
};

// Worlds of more than eight ranks are left out.
inline constexpr std::size_t kTensorWorlds = 2 * kGroupStyles * 3 * 2 * 4 * 4 * 2 * 4;  // 10,752

inline TensorWorld tensor_world(std::size_t i) {
  TensorWorld made;
  made.seed = CounterRng(i, stream_of("test/tensor_worlds")).below(0, std::uint64_t{1} << 40);
  const auto digit = [&](std::size_t base) {
    const std::size_t value = i % base;
    i /= base;
    return static_cast<std::int32_t>(value);
  };
  made.group = 2 << digit(2);
  made.style = static_cast<GroupStyle>(digit(kGroupStyles));
  const bool grid = made.style == GroupStyle::kGrid || made.style == GroupStyle::kGridRing;
  if (grid) made.group *= 2;
  made.data = 1 << digit(3);
  made.pipeline = 1 + digit(2);
  const std::int32_t zero = digit(4);
  made.zero = made.data == 1 ? 0 : zero;
  made.update = static_cast<schedule::UpdatePlacement>(digit(4));
  made.recompute = digit(2) == 1;
  made.placement = digit(4);
  return made;
}

// The units of a rank of the group; all ranks have equal ones.
inline schedule::StepModel units_of_world(const TensorWorld& at) {
  const bool llama = at.seed % 2 == 0;
  model::ModelShape shape{llama ? model::ModelFamily::kLlama : model::ModelFamily::kGpt2,
                          2,
                          32,
                          4,
                          4,
                          64,
                          67,
                          8,
                          at.seed / 2 % 2 == 0};
  // The rest of a block after a tied table is a gap, and no rank adds it.
  if (at.contexts() > 1) shape.vocab = 128 * at.parts();
  // Every rank of a grid has a head to give to each of its context group.
  if (at.style == GroupStyle::kGrid) shape.heads = shape.kv_heads = at.group;
  if (at.style == GroupStyle::kSharedHeads) shape.kv_heads = at.group / 2;
  const bool rows = at.style == GroupStyle::kRows || (at.parts() < at.group && at.seed % 11 < 5);
  const model::TensorShare share{0, at.parts(),  rows && at.parts() > 1, at.contexts(),
                                 0, at.is_ring()};
  const model::Model model(shape, share);
  kernels::OptimizerOptions rule;
  rule.weight = at.seed / 4 % 2 == 0 ? DType::kF32 : DType::kBF16;
  rule.split_master = rule.weight == DType::kBF16;
  const model::ParameterTable table(model, rule, 0.1f, {},
                                    model::ParameterTable::SumLayout::kForShards);
  const auto kernels = kernels::make_host_kernels({1});
  schedule::StepModel step =
      planner::make_step_model(model, {1, 8, rule.weight}, table, *kernels, *kernels);
  // A term stands for elements of a unit, whichever tensors they are of. So all partials of the
  // norm are added, those of tensors that are whole on every rank, too.
  for (schedule::UnitFootprint& unit : step.units) {
    if (at.parts() > 1) {
      unit.cut_norm_blocks = {{0, unit.norm_blocks_before.back()}};
    }
  }
  return step;
}

inline schedule::Schedule compile_world(const schedule::StepModel& model,
                                        const schedule::StepOptions& options,
                                        schedule::StepKind kind, const TensorWorld& at) {
  const schedule::PipelineOrder order = schedule::make_order(
      schedule::OrderKind::k1F1B, at.pipeline, 1, options.microbatches / at.data);
  const auto stages = drawn_stages(model.units.size(), at.pipeline, at.seed);
  std::vector<schedule::Schedule> lists;
  for (std::int32_t rank = 0; rank < at.ranks(); ++rank) {
    schedule::StepModel own = model;
    own.view = parallel::make_rank_view(model, rank / at.group % at.data, at.data, at.zero);
    own.view.tensor = {rank % at.group, at.group, at.contexts(),
                       at.style == GroupStyle::kSharedHeads ? 2 : 1};
    if (at.pipeline > 1) {
      own.pipeline = parallel::make_stage_view(order, stages, rank / at.group / at.data);
    }
    lists.push_back(schedule::compile(own, options, kind));
  }
  return schedule::merge(lists);
}

inline schedule::StepOptions options_of_world(const TensorWorld& at,
                                              const schedule::StepModel& model) {
  schedule::StepOptions options = random_options(model, 2 * at.data, at.seed);
  if (at.placement < 3) {
    const auto tier = static_cast<Tier>(at.placement);
    options.placement = placed(model.units.size(), tier, tier, tier);
  }
  if (at.pipeline > 1) options.order = schedule::ComputeOrder::kMicrobatch;
  if (at.pipeline == 1 && at.seed % 3 == 0) options.turns = 2;
  options.recompute = at.recompute ? random_recompute(model, at.seed) : schedule::Recomputation{};
  cut_segments(options.recompute, drawn_stages(model.units.size(), at.pipeline, at.seed));
  options.update = at.update;
  if (at.data > 1) place_for_stage(options.placement, at.zero);
  return options;
}

inline void run_world(StepChain& chain, const schedule::StepModel& model,
                      const schedule::StepOptions& options, const TensorWorld& at) {
  using schedule::StepKind;
  const bool waits = at.update == schedule::UpdatePlacement::kInBackward;
  const std::vector<bool> accepted{true, waits, true};
  const bool carries = carries_updates(options);
  const bool redoes = options.update == schedule::UpdatePlacement::kSpeculative;
  const schedule::Schedule steady = compile_world(model, options, StepKind::kTraining, at);
  for (std::size_t step = 0; step < accepted.size(); ++step) {
    chain.pass(carries && step == 0 ? compile_world(model, options, StepKind::kFirst, at) : steady,
               step, accepted[step]);
    if (::testing::Test::HasFatalFailure()) return;
    if (!redoes || accepted[step]) continue;
    chain.give_up();
    chain.pass(compile_world(model, options, StepKind::kRedo, at), step);
  }
  if (carries) chain.pass(compile_world(model, options, StepKind::kDrain, at), accepted.size());
}

// Ranks of a context group have the same state of a unit.
inline void expect_equal_copies(const schedule::CarriedState::State& state, std::int32_t parts) {
  for (const auto& [of, runs] : state) {
    std::map<std::pair<std::int32_t, std::uint64_t>, schedule::Term> terms;  // by part and begin
    for (const schedule::CarriedState::Run& run : runs) {
      const auto [at, fresh] = terms.try_emplace({run.place % parts, run.begin}, run.term);
      EXPECT_EQ(at->second, run.term) << "unit " << of.second << ", element " << run.begin;
    }
  }
}

// Whether the mesh is small enough to be one of the sweep.
inline bool expect_groups_terms(const TensorWorld& at) {
  if (at.ranks() > 8) return false;
  SCOPED_TRACE(at.name());
  const schedule::StepModel model = units_of_world(at);
  const schedule::StepOptions options = options_of_world(at, model);
  TensorWorld group = at;
  group.data = group.pipeline = 1;
  group.zero = 0;
  StepChain alone;
  run_world(alone, model, resident_options(model, options.microbatches), group);
  if (::testing::Test::HasFatalFailure()) return true;
  expect_equal_copies(alone.left().state, at.parts());
  const auto timings = schedule::adverse_timings(at.seed, 2);
  StepChain mesh(timings[at.seed * 7 % timings.size()]);
  run_world(mesh, model, options, at);
  if (::testing::Test::HasFatalFailure()) return true;
  EXPECT_EQ(mesh.norms, alone.norms);
  EXPECT_EQ(mesh.losses, alone.losses);
  EXPECT_EQ(without_gradients(mesh.exit), alone.exit);
  return true;
}

}  // namespace sluice::testing
