// Law 1 over whole runs of pipelines: planned by the first rank, with evaluation and checkpoints,
// and resumed by any other number of stages and data-parallel ranks.
#include <gtest/gtest.h>

#include "tests/support/sweep.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::train {
namespace {

using namespace testing;

struct Mesh {
  int pipeline = 1;
  int data = 1;
  const char* order = "1f1b";

  std::string name() const { return std::to_string(data) + "x" + std::to_string(pipeline) + order; }
};

config::Config config_of_run(const TrainingBench& bench, const std::string& run, const Mesh& mesh,
                             const Overrides& settings) {
  return bench.config(
      run, kChosenByHand +
               Overrides{"model.layers=4", "model.hidden=32", "model.heads=2", "train.seq=16",
                         "train.micro_batch=1", "train.steps=4", "train.threads=1",
                         "train.accumulate=4", "data.eval_fraction=0.2", "train.eval_every=2",
                         "memory.backend=host", "parallel.data=" + std::to_string(mesh.data),
                         "parallel.pipeline=" + std::to_string(mesh.pipeline),
                         std::string("parallel.schedule=") + mesh.order,
                         "parallel.zero=" + std::to_string(mesh.data > 1 ? 3 : 0)} +
               settings);
}

void expect_all_meshes(const std::vector<Mesh>& meshes, const Overrides& settings) {
  const TrainingBench bench;
  const TrainingRecord whole = train_in_world(config_of_run(bench, "whole", Mesh{}, settings));
  ASSERT_EQ(whole.losses.size(), 4u);
  ASSERT_EQ(whole.eval_losses.size(), 2u);
  for (std::size_t i = 0; i < sweep(meshes.size()); ++i) {
    const Mesh& from = meshes[i];
    const Mesh& to = meshes[(i + 1) % meshes.size()];
    const std::string run = from.name() + "to" + to.name();
    SCOPED_TRACE(run);
    expect_resumed_bits(bench, run, config_of_run(bench, run, from, settings),
                        config_of_run(bench, run, to, settings), whole);
  }
}

TEST(PipelinesResume, AnyMeshFromAnyMesh) {
  expect_all_meshes({{1, 1},
                     {2, 1},
                     {2, 2},
                     {4, 1, "zb-h1"},
                     {2, 1, "interleaved"},
                     {2, 2, "zb-v"},
                     {3, 1, "gpipe"}},
                    {"memory.place.optimizer=storage"});
}

TEST(PipelinesResume, DurableRunsFromAnyMeshToAnyMesh) {
  expect_all_meshes({{2, 1}, {1, 1}, {2, 2, "zb-h2"}, {3, 1, "vertical"}, {1, 2}},
                    {"memory.place.optimizer=storage", "memory.place.gradient=pinned",
                     "memory.place.weight=pinned", "checkpoint.mode=durable", "checkpoint.every=1",
                     "memory.place.activation=device"});
}

// A commit saves the state that a step finds; the head's copy of the embedding lies next to it.
TEST(PipelinesResume, TiedWeightsOnStorageAtAnyPlaceOfTheUpdate) {
  for (const char* const update : {"after_backward", "next_forward"}) {
    SCOPED_TRACE(update);
    expect_all_meshes(
        {{3, 1, "zb-h1"}, {2, 2}},
        {"memory.place.weight=storage", "memory.place.optimizer=storage", "checkpoint.mode=durable",
         "checkpoint.every=2", std::string("optimizer.placement=") + update});
  }
}

TEST(PipelinesResume, UntiedWeightsOnStorage) {
  expect_all_meshes({{2, 1, "zb-v"}, {2, 2}}, {"model.family=llama", "memory.place.weight=storage",
                                               "memory.place.optimizer=storage",
                                               "checkpoint.mode=durable", "checkpoint.every=1"});
}

}  // namespace
}  // namespace sluice::train
