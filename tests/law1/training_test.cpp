// Training lowers the loss, and moves each weight once in unit order.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/config/shapes.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned_session.hpp"

namespace sluice::train {
namespace {

using namespace testing;

const Overrides kPlainGpt2 = small_gpt2(3, 20) + kLearning;
const Overrides kPlainLlama = kPlainGpt2 + kLlama + Overrides{"model.layers=2"};

// Device and storage engine count the bytes, with room for no more weights than are in use. Weights
// and tokens are uploaded; more micro-batches move neither weights nor sums more often.
TEST(UnitOrder, MovesWeightsAndSumsOnceWhateverTheMicrobatches) {
  const TrainingBench bench;
  std::vector<schedule::LinkBytes> moved;
  for (const std::uint64_t microbatches : {1, 2, 4}) {
    const config::Config config =
        bench.config("run", kPlainGpt2 + kStored + kUnitOrder + kAfterBackward +
                                Overrides{"train.accumulate=" + std::to_string(microbatches)});
    PlannedSession run(config, [&](planner::Plan& plan) {
      // The same for all: the planner may choose differently for each.
      plan.options.weight_slots = 0;
      plan.options.prefetch = 1;
      plan.options.recompute = false;
      const model::Model model(config::model_shape(config));
      const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
      const schedule::StepModel step =
          planner::make_step_model(model, config::batch_shape(config),
                                   config::parameter_table(config, model), *kernels, *kernels);
      std::vector<const schedule::Schedule*> schedules;
      for (const auto kind : {schedule::StepKind::kTraining, schedule::StepKind::kEvaluation}) {
        plan.schedules[kind] = schedule::compile(step, plan.options, kind);
        schedules.push_back(&plan.schedules[kind]);
      }
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

}  // namespace
}  // namespace sluice::train
