// Training lowers the loss, depends on its seed, and moves each weight once in unit order.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/config/shapes.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned_session.hpp"

namespace sluice::train {
namespace {

using testing::kLearning;
using testing::kStored;
using testing::Overrides;
using testing::small_gpt2;
using testing::TrainingBench;
using testing::TrainingRecord;
using testing::operator+;

const Overrides kPlainGpt2 = small_gpt2(3, 20) + kLearning;
const Overrides kPlainLlama = kPlainGpt2 + Overrides{"model.family=llama", "model.kv_heads=2",
                                                     "model.ffn=160", "model.layers=2"};

// Device and storage engine count the bytes, with room for no more weights than are in use. Weights
// and tokens are uploaded; more micro-batches move neither weights nor sums more often.
TEST(UnitOrder, MovesWeightsAndSumsOnceWhateverTheMicrobatches) {
  const TrainingBench bench;
  std::vector<schedule::LinkBytes> moved;
  for (const std::uint64_t microbatches : {1, 2, 4}) {
    const config::Config config =
        bench.config("run", kPlainGpt2 + kStored +
                                Overrides{"train.order=unit", "optimizer.placement=after_backward",
                                          "train.accumulate=" + std::to_string(microbatches)});
    testing::PlannedSession run(config, [&](planner::Plan& plan) {
      // The same for all: the planner may choose differently for each.
      plan.options.weight_slots = 0;
      plan.options.prefetch = 1;
      plan.options.recompute = {};
      const model::Model model(config::model_shape(config));
      const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
      const schedule::StepModel step =
          planner::make_step_model(model, config::batch_shape(config),
                                   config::parameter_table(config, model), *kernels, *kernels);
      plan.schedules[schedule::StepKind::kTraining] =
          schedule::compile(step, plan.options, schedule::StepKind::kTraining);
      plan.schedules[schedule::StepKind::kEvaluation] =
          schedule::compile(step, plan.options, schedule::StepKind::kEvaluation);
      const std::array<const schedule::Schedule*, 2> schedules{
          &plan.schedules[schedule::StepKind::kTraining],
          &plan.schedules[schedule::StepKind::kEvaluation]};
      plan.need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
      plan.peak_bytes = plan.need.peak_bytes();
    });
    moved.push_back(run.step(0).moved);
    moved.back().upload -= microbatches * 2 * 2 * 32 * sizeof(std::int32_t);
  }
  EXPECT_GT(moved[0].upload, 0u);
  EXPECT_EQ(moved[1].upload, moved[0].upload);
  EXPECT_EQ(moved[2].upload, moved[0].upload);
  // One micro-batch's gradients are not summed: they are stored in 16 bits.
  EXPECT_EQ(moved[2].storage_read, moved[1].storage_read);
  EXPECT_EQ(moved[2].storage_write, moved[1].storage_write);
}

TEST(Training, LowersTheLoss) {
  const TrainingBench bench;
  for (const Overrides& model : {kPlainGpt2, kPlainLlama}) {
    const TrainingRecord run = TrainingBench::run(
        bench.config(model == kPlainGpt2 ? "gpt2" : "llama", model + Overrides{"train.steps=60"}));
    EXPECT_NEAR(run.loss(0), std::log(256.0), 0.3);
    EXPECT_LT(run.loss(59), 2.5);
  }
}

// The matrix shows that one seed gives one result (TheSameRunAgain).
TEST(Training, DependsOnTheSeed) {
  const TrainingBench bench;
  const TrainingRecord first = TrainingBench::run(bench.config("first", kPlainGpt2));
  const TrainingRecord other =
      TrainingBench::run(bench.config("other", kPlainGpt2 + Overrides{"train.seed=2"}));
  EXPECT_NE(other.losses, first.losses);
  EXPECT_NE(other.weights_hash, first.weights_hash);
}

}  // namespace
}  // namespace sluice::train
