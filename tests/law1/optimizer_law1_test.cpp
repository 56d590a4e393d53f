// Law 1 for every optimizer and every way of keeping its state: the same bits wherever the state is
// kept, however it is cut and moved, and across a resume.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "tests/engine/train/scratch_directory.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using testing::Overrides;
using testing::places;
using testing::TrainingBench;
using testing::TrainingRecord;
using testing::operator+;

const Overrides kModel{"model.family=gpt2",  "model.layers=2",      "model.hidden=64",
                       "model.heads=4",      "train.seq=32",        "train.steps=12",
                       "optimizer.warmup=3", "train.micro_batch=2", "train.accumulate=2"};

struct Optimizer {
  std::string name;
  Overrides overrides;
};

std::vector<Optimizer> optimizers() {
  const auto lr = [](const char* value) { return Overrides{std::string("optimizer.lr=") + value}; };
  const auto rule = [](const char* value) {
    return Overrides{std::string("optimizer.name=") + value};
  };
  const Overrides split{"optimizer.states=split"};
  const Overrides bf16{"optimizer.moments=bf16"};
  const Overrides block8{"optimizer.moments=8bit"};
  const Overrides fp32{"train.precision=fp32"};
  const Overrides groups{
      "optimizer.groups=[{match=\"*.bias\",lr_scale=0.5},{match=\"embedding.*\",weight_decay=0.0}"
      "]"};
  return {{"adamw_split", split + lr("0.005") + groups},
          {"adamw_split_bf16", split + bf16 + lr("0.005")},
          {"adamw_split_8bit", split + block8 + lr("0.005")},
          {"adamw_8bit", block8 + lr("0.005")},
          {"adamw_fp16_8bit", Overrides{"train.precision=fp16"} + block8 + lr("0.005")},
          {"muon_fp16_bf16", Overrides{"train.precision=fp16"} + rule("muon") + bf16 + lr("0.01")},
          {"adafactor_fp16", Overrides{"train.precision=fp16"} + rule("adafactor") + lr("0.02")},
          {"sm3_split_8bit", rule("sm3") + split + block8 + lr("0.1")},
          {"adamw_fp32_8bit", fp32 + block8 + lr("0.005")},
          {"adam", rule("adam") + lr("0.005")},
          {"sgd", rule("sgd") + lr("0.1") + Overrides{"optimizer.nesterov=true"}},
          {"sgd_plain_split", rule("sgd") + lr("0.1") + split + Overrides{"optimizer.momentum=0"}},
          {"lion_split_bf16", rule("lion") + lr("0.001") + split + bf16},
          {"adafactor", rule("adafactor") + lr("0.02")},
          {"adafactor_split", rule("adafactor") + lr("0.02") + split},
          {"sm3", rule("sm3") + lr("0.1")},
          {"muon", rule("muon") + lr("0.01")},
          {"muon_fp32", rule("muon") + lr("0.01") + fp32},
          // Llama's stored tensors hold several matrices each.
          {"adafactor_llama", Overrides{"model.family=llama"} + rule("adafactor") + lr("0.02")},
          {"sm3_llama_bf16", Overrides{"model.family=llama"} + rule("sm3") + lr("0.1") + bf16},
          {"muon_llama", Overrides{"model.family=llama"} + rule("muon") + lr("0.01")}};
}

// What a failure prints.
void PrintTo(const Optimizer& optimizer, std::ostream* out) {
  *out << optimizer.name;
}

class EveryOptimizer : public ::testing::TestWithParam<Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Variants, EveryOptimizer, ::testing::ValuesIn(optimizers()),
                         [](const auto& variant) { return variant.param.name; });

void expect_same(const TrainingRecord& run, const TrainingRecord& reference) {
  EXPECT_EQ(run.end, TrainingEnd::kDone);
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.norms, reference.norms);
  EXPECT_NE(reference.weights_hash, "");
  EXPECT_EQ(run.weights_hash, reference.weights_hash);
}

TEST_P(EveryOptimizer, LearnsTheSameBitsWhereverItsStateIs) {
  const TrainingBench bench;
  const Overrides model =
      kModel + GetParam().overrides + Overrides{"optimizer.placement=after_backward"};
  const Overrides next{"optimizer.placement=next_forward"};
  const Overrides speculative{"optimizer.placement=speculative"};
  const TrainingRecord reference =
      TrainingBench::run(bench.config("device", model + places("device", "device", "device")));
  EXPECT_EQ(reference.end, TrainingEnd::kDone);
  ASSERT_EQ(reference.losses.size(), 12u);
  EXPECT_LT(reference.loss(11), reference.loss(0) - 0.2);
  const std::vector<std::pair<std::string, Overrides>> variants{
      {"pinned", places("pinned", "pinned", "pinned")},
      {"stored", places("storage", "storage", "storage")},
      {"mixed", places("device", "pinned", "storage") + Overrides{"train.threads=1"}},
      {"next_device", places("device", "device", "device") + next},
      {"next_stored", places("storage", "storage", "storage") + next},
      {"next_mixed", places("device", "pinned", "storage") + next + Overrides{"train.order=unit"}},
      {"speculative_pinned", places("storage", "pinned", "pinned") + speculative},
      {"speculative_device", places("device", "device", "device") + speculative}};
  for (const auto& [name, overrides] : variants) {
    SCOPED_TRACE(name);
    expect_same(TrainingBench::run(bench.config(name, model + overrides)), reference);
  }
}

TEST_P(EveryOptimizer, ResumesToTheSameBits) {
  const TrainingBench bench;
  const Overrides model = kModel + GetParam().overrides;
  const TrainingRecord reference = TrainingBench::run(bench.config("whole", model));
  TrainingOptions options;
  options.stop_at_step = 5;
  TrainingRecord whole =
      TrainingBench::run(bench.config("parts", model + places("pinned", "pinned", "storage") +
                                                   Overrides{"optimizer.placement=next_forward"}),
                         options);
  options.resume = bench.run_directory("parts");
  options.stop_at_step.reset();
  whole.append(TrainingBench::run(
      bench.config("parts", model + places("device", "device", "device")), options));
  expect_same(whole, reference);
}

// A version that knew fewer keys had what are their defaults now.
TEST(Resume, TakesKeysThatACheckpointDoesNotNameForTheirDefaults) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("whole", kModel));
  const config::Config config = bench.config("parts", kModel);
  TrainingOptions options;
  options.stop_at_step = 5;
  TrainingRecord whole = TrainingBench::run(config, options);
  const checkpoint::CheckpointFound found = checkpoint::find_checkpoint(config.checkpoint.dir);
  checkpoint::CheckpointManifest manifest = found.manifest;
  for (const char* key : {"optimizer.groups", "optimizer.moments"}) {
    ASSERT_EQ(manifest.settings.erase(key), 1u) << key;
  }
  checkpoint::save_manifest(manifest, found.directory + "/manifest.json");
  options.resume = bench.run_directory("parts");
  options.stop_at_step.reset();
  const std::string words = message_of<InputError>([&] {
    TrainingBench::run(bench.config("parts", kModel + Overrides{"optimizer.moments=8bit"}),
                       options);
  });
  EXPECT_NE(words.find("optimizer.moments = \"fp32\", which is \"8bit\" now"), std::string::npos)
      << words;
  whole.append(TrainingBench::run(config, options));
  expect_same(whole, reference);
}

// What is lossless changes nothing: the split master is the fp32 master in other clothes.
TEST(SplitMaster, LearnsTheBitsOfTheFp32Master) {
  const TrainingBench bench;
  const Overrides pinned = places("pinned", "pinned", "pinned");
  const TrainingRecord plain = TrainingBench::run(bench.config("plain", kModel + pinned));
  const TrainingRecord split = TrainingBench::run(
      bench.config("split", kModel + pinned + Overrides{"optimizer.states=split"}));
  expect_same(split, plain);
}

// Weights on the device, moments and remainders on storage, gradients pinned: 12 bytes come and 12
// go for each element of the units (padding included), counted by the storage engine and the link.
TEST(SplitMaster, MovesTwelveBytesEachWay) {
  const TrainingBench bench;
  const TrainingRecord run = TrainingBench::run(
      bench.config("run", kModel + places("storage", "pinned", "storage") +
                              Overrides{"optimizer.states=split", "train.accumulate=1"}));
  EXPECT_EQ(run.end, TrainingEnd::kDone);
  const RunEvent& state = run.plan.at("state");
  const auto bytes = [&](const char* kind) { return state.at(kind).get<std::uint64_t>(); };
  const std::uint64_t elems = bytes("weight") / 2;
  EXPECT_EQ(bytes("master"), 2 * elems);
  EXPECT_EQ(bytes("moment1"), 4 * elems);
  EXPECT_EQ(bytes("moment2"), 4 * elems);
  const RunEvent& moved = run.plan.at("bytes_moved");
  EXPECT_EQ(moved.at("storage_write").get<std::uint64_t>(), 12 * elems);
  // The update's twelve, and what the passes fetch: all that goes up but tokens and targets.
  const std::uint64_t tokens_bytes = 2 * 2 * 32 * sizeof(std::int32_t);
  EXPECT_EQ(moved.at("storage_read").get<std::uint64_t>(),
            12 * elems + moved.at("upload").get<std::uint64_t>() - tokens_bytes);
}

}  // namespace
}  // namespace sluice::train
