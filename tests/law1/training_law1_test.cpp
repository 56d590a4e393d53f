// Law 1: losses, gradient norms and final weights are the same bits wherever memory is, however it
// is moved, and whether or not the run was interrupted.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "engine/config/shapes.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "offload/storage_engine.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using testing::Overrides;
using testing::places;
using testing::TrainingBench;
using testing::TrainingRecord;
using testing::operator+;

constexpr std::size_t kSteps = 20;

const Overrides kGpt2{"model.family=gpt2",  "model.layers=3",        "model.hidden=64",
                      "model.heads=4",      "train.seq=32",          "train.steps=20",
                      "optimizer.warmup=3", "optimizer.lr=0.005",    "train.micro_batch=2",
                      "train.accumulate=2", "data.eval_fraction=0.1"};
const Overrides kLlama =
    kGpt2 + Overrides{"model.family=llama", "model.kv_heads=2", "model.ffn=160", "model.layers=2"};

struct Variant {
  std::string name;
  Overrides overrides;
};

void expect_same(const TrainingRecord& run, const TrainingRecord& reference) {
  EXPECT_EQ(run.end, TrainingEnd::kDone);
  ASSERT_EQ(reference.losses.size(), kSteps);
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.norms, reference.norms);
  EXPECT_NE(reference.weights_hash, "");
  EXPECT_EQ(run.weights_hash, reference.weights_hash);
}

void expect_all_same(const Overrides& model, const std::vector<Variant>& variants) {
  const TrainingBench bench;
  const TrainingRecord reference =
      TrainingBench::run(bench.config("reference", model + places("device", "device", "device")));
  for (const Variant& variant : variants) {
    SCOPED_TRACE(variant.name);
    const config::Config config = bench.config(variant.name, model + variant.overrides);
    if (config.memory.storage_engine == config::Config::StorageEngineKind::kIoUring &&
        !offload::io_uring_unavailable_reason().empty()) {
      continue;  // another suite reports that it is missing
    }
    expect_same(TrainingBench::run(config), reference);
  }
}

const Overrides kPinned = places("pinned", "pinned", "pinned");
const Overrides kMixed = places("pinned", "pinned", "storage");
const Overrides kStored = places("storage", "storage", "storage");

TEST(SameBits, WhereverMemoryIs) {
  expect_all_same(kGpt2, {{"pinned", kPinned},
                          {"io_uring", kMixed + Overrides{"memory.storage_engine=io_uring"}},
                          {"sqpoll", kMixed + Overrides{"memory.storage_sqpoll=true"}},
                          {"posix", kMixed + Overrides{"memory.storage_engine=posix"}},
                          {"stored", kStored},
                          {"uneven", places("device", "storage", "pinned")},
                          {"device_weights", places("device", "pinned", "storage")}});
}

TEST(SameBits, HoweverMemoryIsMoved) {
  const Overrides recompute{"recompute.policy=unit"};
  const Overrides chunk{"memory.chunk=4MiB", "memory.prefetch=0"};
  const Overrides ahead{"memory.chunk=6MiB", "memory.prefetch=3"};
  expect_all_same(kGpt2, {{"recompute", kPinned + recompute},
                          {"recompute_device", recompute + places("device", "device", "device")},
                          {"chunk", kPinned + chunk},
                          {"chunk_stored", kStored + chunk + recompute},
                          {"ahead", kMixed + ahead},
                          {"two_threads", kStored + Overrides{"train.threads=2"}},
                          {"one_thread", kPinned + Overrides{"train.threads=1"}}});
}

// The reference has the update behind the backward pass, one micro-batch after another.
TEST(SameBits, WhicheverPassesComeFirstAndWhereverTheUpdateIs) {
  const Overrides next{"optimizer.placement=next_forward"};
  const Overrides unit{"train.order=unit"};
  const Overrides four{"train.accumulate=4"};
  const Overrides plain{"optimizer.placement=after_backward", "train.order=microbatch"};
  for (const Overrides& model : {kGpt2 + plain, kLlama + plain + four}) {
    expect_all_same(
        model, {{"unit", kStored + unit},
                {"unit_recompute", kPinned + unit + Overrides{"recompute.policy=unit"}},
                {"unit_device", places("device", "device", "device") + unit},
                {"next", kMixed + next},
                {"next_stored", kStored + next + Overrides{"memory.prefetch=0"}},
                {"next_device", places("device", "device", "device") + next},
                {"both", kStored + next + unit + Overrides{"memory.chunk=4MiB"}},
                {"uneven", places("device", "storage", "pinned") + next + unit},
                {"saving", kMixed + next + Overrides{"checkpoint.every=3", "train.eval_every=4"}}});
  }
}

TEST(SameBits, OfUpdatesInTheBackwardPass) {
  const Overrides free{"train.clip=0", "optimizer.placement=after_backward"};
  const Overrides backward{"optimizer.placement=in_backward"};
  for (const Overrides& model :
       {kGpt2 + free, kLlama + free, kGpt2 + free + Overrides{"train.accumulate=1"}}) {
    expect_all_same(model, {{"pinned", kPinned + backward},
                            {"stored", kStored + backward + Overrides{"train.order=unit"}},
                            {"mixed", kMixed + backward},
                            {"device", places("device", "device", "device") + backward}});
  }
}

// Counted by the device and the storage engine, with room for no more weights than are in use: what
// goes up is the weights and the tokens, and neither weights nor sums are moved more often for more
// micro-batches.
TEST(UnitOrder, MovesWeightsAndSumsOnceWhateverTheMicrobatches) {
  const TrainingBench bench;
  std::vector<schedule::LinkBytes> moved;
  for (const std::uint64_t microbatches : {1, 2, 4}) {
    const config::Config config =
        bench.config("run", kGpt2 + kStored +
                                Overrides{"train.order=unit", "optimizer.placement=after_backward",
                                          "train.accumulate=" + std::to_string(microbatches)});
    testing::PlannedSession run(config, [&](planner::Plan& plan) {
      // Alike for all: the planner may choose otherwise for each.
      plan.options.weight_slots = 0;
      plan.options.prefetch = 1;
      plan.options.recompute = false;
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

// Budgets that leave `auto` no choice but to spread the optimizer's state over two tiers.
TEST(SameBits, WhereThePlannerPutsMemoryUnderTightBudgets) {
  const TrainingBench bench;
  const TrainingRecord roomy = TrainingBench::run(bench.config("roomy", kGpt2));
  const TrainingRecord tight = TrainingBench::run(
      bench.config("tight", kGpt2 + Overrides{"memory.device=10MiB", "memory.pinned=3MiB"}));
  expect_same(tight, roomy);
  const RunEvent& optimizer = tight.plan.at("units_by_tier").at("optimizer");
  EXPECT_TRUE(optimizer.contains("pinned") && optimizer.contains("storage")) << optimizer;
}

TEST(SameBits, OfAGroupedQueryLlamaWithItsOwnHead) {
  expect_all_same(kLlama, {{"pinned", kPinned},
                           {"stored", kStored + Overrides{"recompute.policy=unit"}},
                           {"mixed", kMixed + Overrides{"memory.prefetch=0"}}});
}

TEST(SameBits, InFp32) {
  const Overrides fp32{"train.precision=fp32"};
  expect_all_same(kGpt2 + fp32, {{"pinned", kPinned}, {"stored", kStored}});
  expect_all_same(kLlama + fp32 + Overrides{"model.tie_embeddings=true"},
                  {{"mixed", kMixed + Overrides{"recompute.policy=unit"}}});
}

TEST(SameBits, WithoutAccumulation) {
  const Overrides single{"train.accumulate=1"};
  expect_all_same(kGpt2 + single, {{"pinned", kPinned}, {"stored", kStored}});
  expect_all_same(kLlama + single, {{"mixed", kMixed}});
}

// Evaluation between steps changes nothing, and its losses do not depend on where memory is.
TEST(SameBits, AlsoOfEvaluation) {
  const TrainingBench bench;
  const TrainingRecord plain = TrainingBench::run(bench.config("plain", kGpt2));
  const Overrides evaluated = kGpt2 + Overrides{"train.eval_every=5"};
  const TrainingRecord device = TrainingBench::run(bench.config("device", evaluated));
  const TrainingRecord stored = TrainingBench::run(bench.config("stored", evaluated + kStored));
  expect_same(device, plain);
  expect_same(stored, plain);
  ASSERT_EQ(device.eval_losses.size(), kSteps / 5);
  EXPECT_EQ(stored.eval_losses, device.eval_losses);
}

// A signal after step 7, then resumed: also with memory in other places than before.
TEST(Resume, AfterAnInterruptGoesOnToTheSameBits) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", kGpt2));
  const std::vector<std::pair<Overrides, Overrides>> before_and_after{
      {kPinned, kPinned},
      {kStored, kStored},
      {kStored, places("device", "device", "device")},
      {kPinned, kMixed + Overrides{"memory.chunk=4MiB", "recompute.policy=unit"}},
      {kMixed + Overrides{"optimizer.placement=next_forward"},
       kStored + Overrides{"optimizer.placement=next_forward", "train.order=unit"}},
      {kPinned + Overrides{"optimizer.placement=next_forward"},
       kPinned + Overrides{"optimizer.placement=after_backward"}}};
  for (std::size_t i = 0; i < before_and_after.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string run = "run" + std::to_string(i);
    std::atomic<int> signal{0};
    TrainingOptions interrupted;
    interrupted.stop_signal = &signal;
    TrainingRecord whole =
        TrainingBench::run(bench.config(run, kGpt2 + before_and_after[i].first), interrupted,
                           [&](const StepReport& report) { signal = report.step == 7 ? 15 : 0; });
    EXPECT_EQ(whole.end, TrainingEnd::kInterrupted);
    EXPECT_EQ(whole.losses.size(), 7u);
    TrainingOptions resumed;
    resumed.resume = bench.run_directory(run);
    whole.append(
        TrainingBench::run(bench.config(run, kGpt2 + before_and_after[i].second), resumed));
    expect_same(whole, reference);
  }
}

TEST(Resume, AfterAStopAtAStepGoesOnToTheSameBits) {
  const TrainingBench bench;
  for (const Overrides& model : {kGpt2, kLlama + Overrides{"train.precision=fp32"}}) {
    const std::string name = model == kGpt2 ? "gpt2" : "llama";
    const TrainingRecord reference = TrainingBench::run(bench.config(name + "_whole", model));
    const config::Config config = bench.config(name, model + kMixed);
    TrainingOptions options;
    options.stop_at_step = 9;
    TrainingRecord whole = TrainingBench::run(config, options);
    EXPECT_EQ(whole.losses.size(), 9u);
    options.resume = bench.run_directory(name);
    options.stop_at_step = 14;
    whole.append(TrainingBench::run(config, options));
    EXPECT_EQ(whole.losses.size(), 14u);
    options.stop_at_step.reset();
    whole.append(TrainingBench::run(config, options));
    expect_same(whole, reference);
  }
}

TEST(Training, LowersTheLoss) {
  const TrainingBench bench;
  for (const Overrides& model : {kGpt2, kLlama}) {
    const TrainingRecord run = TrainingBench::run(
        bench.config(model == kGpt2 ? "gpt2" : "llama", model + Overrides{"train.steps=60"}));
    EXPECT_NEAR(run.loss(0), std::log(256.0), 0.3);
    EXPECT_LT(run.loss(59), 2.5);
  }
}

// The seed decides, and nothing else: two seeds differ, one seed twice does not.
TEST(Training, IsAFunctionOfTheSeed) {
  const TrainingBench bench;
  const TrainingRecord first = TrainingBench::run(bench.config("first", kGpt2));
  expect_same(TrainingBench::run(bench.config("again", kGpt2)), first);
  const TrainingRecord other =
      TrainingBench::run(bench.config("other", kGpt2 + Overrides{"train.seed=2"}));
  EXPECT_NE(other.losses, first.losses);
  EXPECT_NE(other.weights_hash, first.weights_hash);
}

}  // namespace
}  // namespace sluice::train
