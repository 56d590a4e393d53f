// Chunk slots and the device arena in one memory: less of it, the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/law1/same_bits.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/sweep.hpp"

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
  for (const Overrides& variant : sampled<Overrides>(
           {places("pinned", "pinned", "pinned"),
            places("pinned", "pinned", "storage") + Overrides{"recompute.policy=none"},
            places("storage", "storage", "storage") + Overrides{"train.order=unit"},
            places("pinned", "storage", "storage") +
                Overrides{"checkpoint.mode=durable", "checkpoint.every=2"},
            places("device", "pinned", "pinned") + Overrides{"memory.chunk=4MiB"}})) {
    SCOPED_TRACE(variant.back());
    const Overrides settings = kUnevenModel + kSearchedFor + variant;
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

}  // namespace
}  // namespace sluice::train
