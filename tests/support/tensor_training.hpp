// Training runs of tensor groups, and of meshes that they are part of. Ranks are threads with a
// session each; the bytes that they exchange are real.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"
#include "engine/checkpoint/saved_parts.hpp"
#include "tests/support/rank_sessions.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

inline constexpr std::int64_t kTensorSteps = 3;

// Places and recomputation are those that make_plan() would choose with this much memory: to search
// for them takes four times as long as the steps. Tests of plans and of the program leave them
// open.
inline Overrides tensor_model() {
  return Overrides{"model.layers=2",        "model.hidden=64",
                   "model.heads=4",         "train.seq=16",
                   "train.micro_batch=2",   "train.steps=3",
                   "train.precision=fp32",  "train.accumulate=2",
                   "recompute.policy=none", "memory.place.activation=device"} +
         places("device", "device", "device");
}

inline config::Config config_of_group(const TrainingBench& bench, const Overrides& settings,
                                      int ranks) {
  return bench.config(
      "run", tensor_model() + settings + Overrides{"parallel.tensor=" + std::to_string(ranks)});
}

// The plan of rank 0, as make_plan() chooses and proves it.
inline planner::Plan plan_of_world(const config::Config& config) {
  const train::Backend backend = one_threaded_backend(config);
  const model::Model model(config::model_shape(config), config::tensor_share(config, 0));
  auto result =
      planner::make_plan(config, model, *backend.device_kernels, {}, backend.host_kernels.get());
  if (auto* refusal = std::get_if<planner::Refusal>(&result)) {
    throw InputError(refusal->sentence());
  }
  return std::get<planner::Plan>(std::move(result));
}

// The record that all ranks have. The bytes that they send are the planned ones. turns: not 0:
// instead of the plan's.
inline RanksRecord train_group(const config::Config& config, std::int64_t steps = kTensorSteps,
                               std::int32_t turns = 0) {
  planner::Plan plan = plan_of_world(config);
  if (turns > 0) plan.options.turns = turns;
  const RanksRun run = train_on_ranks(config, plan.options, steps);
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, run.ranks.front());
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
  return run.ranks.front();
}

// tolerance: of each value, as a part of it.
inline void expect_near(const std::vector<std::uint64_t>& values,
                        const std::vector<std::uint64_t>& wanted, double tolerance) {
  ASSERT_EQ(values.size(), wanted.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto expected = std::bit_cast<double>(wanted[i]);
    EXPECT_NEAR(std::bit_cast<double>(values[i]), expected, tolerance * expected) << "step " << i;
  }
}

// A mesh of up to eight ranks. Neighbours differ in most settings.
struct TensorMesh {
  int tensor = 2;
  int data = 1;
  int pipeline = 1;
  int zero = 0;
  Overrides settings;  // that decide the bits
  Overrides memory;    // and those that do not
};

inline TensorMesh tensor_mesh(std::size_t i) {
  TensorMesh at;
  at.tensor = i % 5 == 4 ? 4 : 2;
  at.data = i % 3 == 2 ? 1 : 2;
  at.zero = at.data == 1 ? 0 : static_cast<int>(i / 2 % 4);
  at.pipeline = i % 3 == 2 || (i % 4 == 1 && at.tensor == 2) ? 2 : 1;
  if (i % 6 == 1 && at.tensor == 2 && at.pipeline == 1) at.data = 4;
  const auto pick = [&](Overrides& to, std::size_t stride,
                        std::initializer_list<const char*> values) {
    to.push_back(values.begin()[i / stride % values.size()]);
  };
  pick(at.settings, 1, {"model.family=gpt2", "model.family=llama"});
  pick(at.settings, 3, {"train.precision=fp32", "train.precision=bf16", "train.precision=fp16"});
  pick(at.settings, 4, {"train.fold_groups=1", "train.fold_groups=4"});
  pick(at.settings, 5, {"model.tie_embeddings=true", "model.tie_embeddings=false"});
  if (i % 4 != 3) at.settings.push_back("model.vocab=277");
  pick(at.settings, 3, {"model.kv_heads=4", "model.kv_heads=1", "model.kv_heads=2"});
  pick(at.settings, 7, {"parallel.sequence=true", "parallel.sequence=false"});
  pick(at.settings, 3, {"optimizer.moments=fp32", "optimizer.moments=bf16"});
  pick(at.memory, 2,
       {"recompute.policy=none", "recompute.policy=unit", "recompute.policy=selective",
        "recompute.policy=every:2"});
  pick(at.memory, 3,
       {"optimizer.placement=after_backward", "optimizer.placement=next_forward",
        "optimizer.placement=speculative"});
  pick(at.memory, 5,
       {"memory.place.activation=device", "memory.place.activation=pinned",
        "memory.place.activation=storage"});
  if (at.data > 1 && at.zero < 3) {
    at.memory = at.memory + places("device", at.zero == 0 ? "device" : "pinned",
                                   i % 2 == 0 ? "storage" : "pinned");
  } else {
    at.memory = at.memory + places_in_turn(i);
  }
  return at;
}

// A mesh has the bits of its tensor group alone, whatever its memory options.
inline void expect_group_bits(std::size_t i) {
  const TensorMesh at = tensor_mesh(i);
  SCOPED_TRACE("mesh " + std::to_string(i) + ": tensor " + std::to_string(at.tensor) + ", data " +
               std::to_string(at.data) + ", pipeline " + std::to_string(at.pipeline) + ", ZeRO " +
               std::to_string(at.zero) + ", " + ::testing::PrintToString(at.settings) + ", " +
               ::testing::PrintToString(at.memory));
  const Overrides settings =
      at.settings + Overrides{"train.accumulate=8", "train.order=microbatch"};
  const TrainingBench bench;
  const RanksRecord alone = train_group(config_of_group(
      bench, settings + Overrides{"recompute.policy=none"} + places("device", "device", "device"),
      at.tensor));
  RanksRecord mesh =
      train_group(config_of_group(TrainingBench(),
                                  settings + at.memory +
                                      Overrides{"parallel.data=" + std::to_string(at.data),
                                                "parallel.zero=" + std::to_string(at.zero),
                                                "parallel.pipeline=" + std::to_string(at.pipeline)},
                                  at.tensor),
                  kTensorSteps, at.pipeline == 1 ? 1 + static_cast<std::int32_t>(i / 2 % 2) : 1);
  mesh.redone_steps = alone.redone_steps;  // of a speculative update
  EXPECT_EQ(mesh, alone);
}

// --- parts of sequences --------------------------------------------------------------------------

inline config::Config config_of_contexts(const TrainingBench& bench, const Overrides& settings,
                                         int ranks) {
  return bench.config("run", tensor_model() + Overrides{"train.micro_batch=1", "model.vocab=277"} +
                                 settings + Overrides{"parallel.context=" + std::to_string(ranks)});
}

// A mesh has the bits of its context group alone, whatever its memory options. attention: the
// group's.
inline void expect_context_bits(std::size_t i, const std::string& attention) {
  const TensorMesh at = tensor_mesh(i);
  const Overrides memory =
      at.memory + Overrides{"parallel.data=" + std::to_string(at.data),
                            "parallel.zero=" + std::to_string(at.zero),
                            "parallel.pipeline=" + std::to_string(at.pipeline)};
  SCOPED_TRACE(std::to_string(i) + ", " + attention + ", " + ::testing::PrintToString(memory));
  const Overrides settings{i % 2 == 0 ? "model.family=llama" : "model.family=gpt2",
                           "train.accumulate=8", "train.order=microbatch",
                           i % 3 == 0 ? "train.precision=bf16" : "train.precision=fp32",
                           "parallel.context_attention=" + attention};
  const int ranks = at.data * at.pipeline <= 2 ? at.tensor : 2;
  const TrainingBench bench, other;
  const RanksRecord alone = train_group(config_of_contexts(
      bench, settings + Overrides{"recompute.policy=none"} + places("device", "device", "device"),
      ranks));
  RanksRecord mesh = train_group(config_of_contexts(other, settings + memory, ranks));
  mesh.redone_steps = alone.redone_steps;
  EXPECT_EQ(mesh, alone);
}

// --- files ---------------------------------------------------------------------------------------

// Meshes of one to eight ranks that share a model of at least two key/value heads.
inline const std::vector<TensorMesh>& resharded_meshes() {
  static const std::vector<TensorMesh> meshes{
      {1, 1, 1, 0, {}, {}},
      {2, 1, 1, 0, {}, places("pinned", "pinned", "storage")},
      {4, 1, 1, 0, {}, {}},
      {2, 2, 1, 3, {}, places("storage", "storage", "storage")},
      {1, 2, 1, 1, {}, {}},
      {4, 2, 1, 2, {}, {}},
      {2, 1, 2, 0, {}, {}},
      {2, 2, 2, 3, {}, places("pinned", "pinned", "pinned")},
      // Parts of sequences.
      {1, 2, 1, 3, {}, {"parallel.context=2", "train.micro_batch=1"}}};
  return meshes;
}

// The configuration of a mesh with a run directory in `bench`.
inline config::Config config_of_mesh(const TrainingBench& bench, const TensorMesh& mesh,
                                     const Overrides& model) {
  return config_of_group(bench,
                         model + mesh.memory +
                             Overrides{"train.accumulate=8", "train.order=microbatch",
                                       "parallel.data=" + std::to_string(mesh.data),
                                       "parallel.zero=" + std::to_string(mesh.zero),
                                       "parallel.pipeline=" + std::to_string(mesh.pipeline)},
                         mesh.tensor);
}

// Writes a mesh's state into `to` after `steps` steps, or after none the state from `from`.
inline RanksRecord write_state(const TensorMesh& mesh, const Overrides& model, std::int64_t steps,
                               const std::string& from, const std::string& to) {
  const TrainingBench bench;
  const config::Config config = config_of_mesh(bench, mesh, model);
  const planner::Plan plan = plan_of_world(config);
  const RanksRun run =
      train_on_ranks(config, plan.options, steps, {}, -1, {}, [&](train::Session& session) {
        if (!from.empty()) session.state().load(checkpoint::SafetensorsReader(from));
        session.state().save(to);
      });
  return run.ranks.front();
}

// --- durable commits -----------------------------------------------------------------------------

// The ranks of a mesh train a step and commit it beneath the bench. Their state goes to the file
// `state`, too.
inline void commit_state(const TrainingBench& bench, const TensorMesh& mesh, const Overrides& model,
                         const std::string& state) {
  const config::Config config = config_of_mesh(bench, mesh, model);
  const planner::Plan plan = plan_of_world(config);
  checkpoint::CheckpointManifest manifest;
  manifest.step = 1;
  manifest.data_fingerprint = std::string(32, '0');
  manifest.settings = config::durable_settings(config);
  train_on_ranks(config, plan.options, 1, {}, -1, {}, [&](train::Session& session) {
    session.commit(manifest);
    session.state().save(state);
  });
}

// The commit of all ranks whose configuration this is one of.
inline checkpoint::DurableFound find_commit(const config::Config& config) {
  std::vector<checkpoint::PassedOver> passed_over;
  auto found = checkpoint::find_durable_of_ranks(config.checkpoint.dir, config.memory.storage_paths,
                                                 passed_over);
  for (const checkpoint::PassedOver& passed : passed_over) ADD_FAILURE() << passed.why;
  if (!found) throw Error("no rank has committed");
  return std::move(*found);
}

// The ranks of another mesh load it, and write their state into the file `state`.
inline void load_commit(const checkpoint::DurableFound& found, const TensorMesh& mesh,
                        const Overrides& model, const std::string& state) {
  const TrainingBench bench;
  const config::Config config = config_of_mesh(bench, mesh, model);
  const planner::Plan plan = plan_of_world(config);
  train_on_ranks(config, plan.options, 0, {}, -1, {}, [&](train::Session& session) {
    const auto& own = static_cast<const model::Model&>(session.state().space());
    const checkpoint::SavedParts parts(found, own);
    session.load(parts);
    session.state().save(state);
  });
}

}  // namespace sluice::testing
