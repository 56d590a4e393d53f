// Forged cuts in the lists of ranks that compute each micro-batch together: validate() refuses all
// of them, because a schedule names the cuts that its units declare.
#include <gtest/gtest.h>

#include "tests/support/mutate_schedule.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::testing {
namespace {

schedule::Schedule world_of(const config::Config& config) {
  const schedule::StepOptions options = plan_of_world(config).options;
  const train::Backend backend = one_threaded_backend(config);
  std::vector<schedule::Schedule> lists;
  for (int rank = 0; rank < config.parallel.ranks(); ++rank) {
    const model::Model model(config::model_shape(config), config::tensor_share(config, rank));
    const planner::Plan plan = planner::plan_rank(config, model, *backend.device_kernels, {},
                                                  options, rank, backend.host_kernels.get());
    lists.push_back(plan.schedules[schedule::StepKind::kTraining]);
  }
  return schedule::merge(lists);
}

TEST(CutMutations, NoForgedCutIsAccepted) {
  const std::vector<Overrides> meshes{
      {"parallel.tensor=2", "model.vocab=277", "recompute.policy=selective"},
      {"parallel.tensor=2", "parallel.sequence=true", "recompute.policy=unit"},
      {"parallel.context=2", "train.micro_batch=1"},
      {"parallel.context=2", "train.micro_batch=1", "parallel.context_attention=ring"},
      {"parallel.context=4", "train.micro_batch=1", "parallel.context_attention=ring",
       "recompute.policy=selective", "model.kv_heads=1"},
  };
  int made = 0;
  for (const Overrides& mesh : meshes) {
    SCOPED_TRACE(::testing::PrintToString(mesh));
    const TrainingBench bench;
    const schedule::Schedule world = world_of(bench.config("run", tensor_model() + mesh));
    ASSERT_TRUE(schedule::validate(world).empty());
    for (std::uint64_t seed = 0; seed < sweep(120); ++seed) {
      const auto mutant = Mutator(world, seed).mutate(Mutation::kForgeCut);
      ASSERT_TRUE(mutant.has_value());
      ++made;
      EXPECT_FALSE(schedule::validate(*mutant).empty()) << "seed " << seed;
    }
  }
  EXPECT_EQ(made, static_cast<int>(meshes.size() * sweep(120)));
}

}  // namespace
}  // namespace sluice::testing
