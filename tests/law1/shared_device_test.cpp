// Chunk slots and the device arena in one memory: less of it, the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "engine/config/shapes.hpp"
#include "engine/planner/candidates.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// The head's window and its gradients are larger than a block's, while a block's activations are
// larger than the head's.
const Overrides kUnevenModel{"model.family=gpt2",   "model.layers=2",         "model.hidden=64",
                             "model.heads=4",       "model.vocab=4096",       "train.seq=256",
                             "train.micro_batch=8", "train.accumulate=2",     "train.steps=3",
                             "optimizer.lr=0.005",  "data.eval_fraction=0.1", "train.eval_every=2",
                             "train.precision=bf16"};

TEST(SharedDevice, GivesTheSameBitsInTheLeastMemory) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", kUnevenModel));
  for (const Overrides& variant :
       {places("pinned", "pinned", "pinned"),
        places("pinned", "pinned", "storage") + Overrides{"recompute.policy=none"},
        places("storage", "storage", "storage") + Overrides{"train.order=unit"},
        places("pinned", "storage", "storage") +
            Overrides{"checkpoint.mode=durable", "checkpoint.every=2"},
        places("device", "pinned", "pinned") + Overrides{"memory.chunk=4MiB"}}) {
    SCOPED_TRACE(variant.back());
    const Overrides settings = kUnevenModel + variant;
    const std::uint64_t least =
        least_device(bench.config("least", settings + Overrides{"memory.device=2MiB"}));
    const config::Config config =
        bench.config("shared", settings + Overrides{"memory.device=" + std::to_string(least)});
    const auto plan = planned(config);
    EXPECT_TRUE(
        std::get<planner::Plan>(plan).schedules[schedule::StepKind::kTraining].shares_device);
    EXPECT_LE(std::get<planner::Plan>(plan).peak_bytes[0], least);
    expect_same_bits(TrainingBench::run(config), reference);
    std::filesystem::remove_all(config.log.dir);
  }
}

// If the order is open, a refusal and a plan consider both.
TEST(SharedDevice, TheLeastIsThatOfEitherOrder) {
  const TrainingBench bench;
  const auto least = [&](const char* order) {
    return least_device(bench.config(
        "run", kUnevenModel + places("pinned", "pinned", "storage") +
                   Overrides{"model.layers=1", "train.seq=512", "train.precision=fp32",
                             "memory.chunk=8MiB", "memory.prefetch=1", "recompute.policy=unit",
                             "memory.place.activation=device", "optimizer.placement=next_forward",
                             "memory.device=2MiB", std::string("train.order=") + order}));
  };
  EXPECT_EQ(least("auto"), std::min(least("unit"), least("microbatch")));
  EXPECT_LT(least("unit"), least("microbatch")) << "or this shows nothing";
}

// The sum of each one's largest use is more than a ninth larger: 16 MiB against 14.
TEST(SharedDevice, TakesATenthLessThanSlotsAndArenaApart) {
  const TrainingBench bench;
  const config::Config config =
      bench.config("run", kUnevenModel + places("pinned", "pinned", "pinned") +
                              Overrides{"memory.device=2MiB", "memory.place.activation=device"});
  const std::uint64_t least = least_device(config);
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  const model::Model model(config::model_shape(config));
  const schedule::StepModel step =
      planner::make_step_model(model, config::batch_shape(config),
                               config::parameter_table(config, model), *kernels, *kernels);
  std::uint64_t apart = std::numeric_limits<std::uint64_t>::max();
  for (const planner::CandidateGroup& group : planner::plan_candidates(config, step)) {
    if (planner::shares_device(group)) continue;
    for (const schedule::StepOptions& options : group) {
      const schedule::Schedule training =
          schedule::compile(step, options, schedule::StepKind::kTraining);
      const schedule::Schedule evaluation =
          schedule::compile(step, options, schedule::StepKind::kEvaluation);
      const std::array<const schedule::Schedule*, 2> schedules{&training, &evaluation};
      apart = std::min(apart, runtime::memory_need(schedules, 0).peak_bytes()[0]);
    }
  }
  EXPECT_LT(static_cast<double>(least), 0.9 * static_cast<double>(apart));
}

}  // namespace
}  // namespace sluice::train
