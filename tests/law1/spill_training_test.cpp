// Runs that spill activations: the bits of those that keep them, in less device memory.
#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"
#include "offload/storage_engine.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using testing::least_device;
using testing::Overrides;
using testing::places;
using testing::planned;
using testing::TrainingBench;
using testing::TrainingRecord;
using testing::operator+;

const Overrides kModel{"model.family=llama", "model.layers=4",         "model.hidden=64",
                       "model.heads=4",      "train.seq=32",           "train.steps=4",
                       "optimizer.warmup=2", "optimizer.lr=0.005",     "train.micro_batch=2",
                       "train.accumulate=3", "data.eval_fraction=0.1", "train.eval_every=2"};

Overrides activations(const std::string& tier) {
  return {"memory.place.activation=" + tier};
}

std::uint64_t moved(const TrainingRecord& run, const char* link) {
  return run.plan.at("activation_bytes_moved").at(link).get<std::uint64_t>();
}

void expect_same(const TrainingRecord& run, const TrainingRecord& reference) {
  ASSERT_EQ(run.end, TrainingEnd::kDone);
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.norms, reference.norms);
  EXPECT_EQ(run.eval_losses, reference.eval_losses);
  EXPECT_NE(reference.weights_hash, "");
  EXPECT_EQ(run.weights_hash, reference.weights_hash);
  EXPECT_EQ(run.done.at("peak_bytes"), run.plan.at("peak_bytes"));
  EXPECT_EQ(run.done.at("measured_peak_bytes").at("storage"),
            run.plan.at("peak_bytes").at("storage"));
}

// Where they are on storage and nothing else is, what storage moves is what is spilled.
void expect_moves(const TrainingRecord& run, const std::string& tier) {
  const bool spilled = tier != "device";
  const bool stored = tier == "storage";
  EXPECT_EQ(moved(run, "download") > 0, spilled);
  EXPECT_GE(moved(run, "upload"), moved(run, "download"));
  EXPECT_EQ(moved(run, "storage_write"), stored ? moved(run, "download") : 0);
  EXPECT_EQ(moved(run, "storage_read"), stored ? moved(run, "upload") : 0);
}

struct Variant {
  std::string name;
  Overrides overrides;
};

std::vector<Variant> every_engine_order_and_recomputation() {
  std::vector<Variant> variants;
  for (const std::string engine : {"io_uring", "posix"}) {
    if (engine == "io_uring" && !offload::io_uring_unavailable_reason().empty()) continue;
    for (const std::string order : {"microbatch", "unit"}) {
      for (const std::string recompute : {"none", "unit"}) {
        variants.push_back({engine + "_" + order + "_" + recompute,
                            {"memory.storage_engine=" + engine, "train.order=" + order,
                             "recompute.policy=" + recompute}});
      }
    }
  }
  return variants;
}

TEST(SpilledActivations, GiveTheSameBitsOnEveryTier) {
  const TrainingBench bench;
  const Overrides scratch = kModel + places("pinned", "pinned", "pinned");
  const TrainingRecord reference = TrainingBench::run(bench.config(
      "reference", kModel + activations("device") + places("device", "device", "device")));
  for (const Variant& variant : every_engine_order_and_recomputation()) {
    for (const std::string tier : {"device", "pinned", "storage"}) {
      SCOPED_TRACE(variant.name + "_" + tier);
      const TrainingRecord run = TrainingBench::run(
          bench.config(variant.name + "_" + tier, scratch + variant.overrides + activations(tier)));
      expect_same(run, reference);
      expect_moves(run, tier);
    }
  }
}

TEST(SpilledActivations, GiveTheSameBitsInDurableRunsAndWhereverTheUpdateIs) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", kModel));
  const Overrides durable{"checkpoint.mode=durable", "checkpoint.every=2"};
  const Overrides next{"optimizer.placement=next_forward"};
  const Overrides mixed = places("pinned", "pinned", "storage");
  for (const std::string tier : {"pinned", "storage"}) {
    for (const Variant& variant :
         {Variant{"durable", durable + mixed}, Variant{"durable_next", durable + next + mixed},
          Variant{"stored", durable + places("storage", "storage", "storage") +
                                Overrides{"train.order=unit"}},
          Variant{"next", next + mixed + Overrides{"memory.prefetch=0"}},
          Variant{"resident", places("device", "device", "device")}}) {
      SCOPED_TRACE(variant.name + "_" + tier);
      const TrainingRecord run = TrainingBench::run(
          bench.config(variant.name + "_" + tier, kModel + variant.overrides + activations(tier)));
      expect_same(run, reference);
      EXPECT_GT(moved(run, "download"), 0u);
    }
  }
}

// Updates in the backward pass go without clipping.
TEST(SpilledActivations, GiveTheSameBitsBesideUpdatesInTheBackwardPass) {
  const TrainingBench bench;
  const Overrides free = kModel + Overrides{"train.clip=0"};
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", free));
  for (const std::string order : {"microbatch", "unit"}) {
    SCOPED_TRACE(order);
    expect_same(
        TrainingBench::run(bench.config(
            order, free + activations("storage") + places("storage", "pinned", "storage") +
                       Overrides{"optimizer.placement=in_backward", "train.order=" + order})),
        reference);
  }
}

// What is spilled is no part of a checkpoint: a run goes on from it with another placement.
TEST(SpilledActivations, AreNoPartOfACheckpoint) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", kModel));
  const Overrides durable = kModel + places("storage", "pinned", "storage") +
                            Overrides{"checkpoint.mode=durable", "checkpoint.every=1"};
  TrainingOptions options;
  options.stop_at_step = 2;
  TrainingRecord whole =
      TrainingBench::run(bench.config("run", durable + activations("storage")), options);
  EXPECT_GT(moved(whole, "storage_write"), 0u);
  options.resume = bench.run_directory("run");
  options.stop_at_step.reset();
  whole.append(TrainingBench::run(bench.config("run", durable + activations("device")), options));
  EXPECT_EQ(whole.end, TrainingEnd::kDone);
  EXPECT_EQ(whole.losses, reference.losses);
  EXPECT_EQ(whole.weights_hash, reference.weights_hash);
}

// Of what units save each part has a place of its own.
TEST(SpilledParts, GiveTheSameBitsWhereverEachWaits) {
  const TrainingBench bench;
  const TrainingRecord reference = TrainingBench::run(bench.config("reference", kModel));
  const Overrides base = kModel + Overrides{"recompute.policy=none"};
  const auto saved = [](const std::string& places) {
    return Overrides{"memory.place.saved={" + places + "}"};
  };
  const std::string scattered =
      "qkv='storage',mlp_up='pinned',attention='pinned',normed2='storage','*'='device'";
  for (const Variant& variant :
       {Variant{"one", saved("mlp_hidden='storage','*'='device'")},
        Variant{"scattered", saved(scattered) + places("pinned", "pinned", "storage")},
        Variant{"unit_order", saved(scattered) + Overrides{"train.order=unit"}},
        Variant{"immediate", saved(scattered) + Overrides{"memory.prefetch=0"}},
        Variant{"beside_outputs", saved("qkv='device'") + activations("pinned")},
        Variant{"durable", saved(scattered) + places("pinned", "pinned", "storage") +
                               Overrides{"checkpoint.mode=durable", "checkpoint.every=2"}}}) {
    SCOPED_TRACE(variant.name);
    const TrainingRecord run =
        TrainingBench::run(bench.config(variant.name, base + variant.overrides));
    expect_same(run, reference);
    EXPECT_GT(moved(run, "download"), 0u);
    const RunEvent& parts = run.plan.at("saved_by_tier");
    if (variant.name == "one") {
      EXPECT_TRUE(parts.at("mlp_hidden").contains("storage"));
      EXPECT_FALSE(parts.at("qkv").contains("pinned"));
      EXPECT_EQ(parts.at("mlp_hidden").at("storage"), moved(run, "storage_write"));
    }
    if (variant.name == "scattered") {
      EXPECT_TRUE(parts.at("qkv").contains("storage"));
      EXPECT_TRUE(parts.at("attention").contains("pinned"));
      EXPECT_FALSE(parts.at("residual").contains("pinned"));
    }
  }
}

// All micro-batches of a unit at a time: their activations do not fit on the device, and do
// elsewhere; left to the planner they go there.
TEST(SpilledActivations, TrainWhereTheDeviceCannotHoldThem) {
  const TrainingBench bench;
  const Overrides model =
      kModel + Overrides{"train.seq=64",     "train.micro_batch=4",   "train.accumulate=12",
                         "train.order=unit", "recompute.policy=unit", "model.layers=6"};
  const auto with_device = [&](const std::string& name, const std::string& tier,
                               std::uint64_t device) {
    return bench.config(
        name, model + activations(tier) + Overrides{"memory.device=" + std::to_string(device)});
  };
  const std::uint64_t kept = least_device(with_device("none", "device", 0));
  const std::uint64_t spilled = least_device(with_device("none", "pinned", 0));
  EXPECT_GE(kept, spilled + 2 * kMiB);
  const auto refused = planned(with_device("refused", "device", spilled));
  EXPECT_NE(std::get<planner::Refusal>(refused).sentence().find(
                "memory.device needs " + format_bytes_exact(kept) + " and has " +
                format_bytes_exact(spilled)),
            std::string::npos)
      << std::get<planner::Refusal>(refused).sentence();
  EXPECT_EQ(TrainingBench::run(with_device("refused", "device", spilled)).end,
            TrainingEnd::kRefused);

  const TrainingRecord reference =
      TrainingBench::run(with_device("reference", "device", 256 * kMiB));
  for (const std::string tier : {"pinned", "storage", "auto"}) {
    SCOPED_TRACE(tier);
    const TrainingRecord run = TrainingBench::run(with_device(tier, tier, spilled));
    expect_same(run, reference);
    EXPECT_LE(run.plan.at("peak_bytes").at("device").get<std::uint64_t>(), spilled);
    const RunEvent& units = run.plan.at("units_by_tier").at("activation");
    EXPECT_TRUE(units.contains("pinned") || units.contains("storage")) << units;
  }
}

// Passes of 512 rows take longer to make again than what they saved takes to copy.
TEST(SpilledActivations, TakeThePlaceOfRecomputationWhereThatIsFaster) {
  const TrainingBench bench;
  const auto plan_of = [&](const std::string& tier, std::uint64_t device) {
    return planned(bench.config(
        "run", kModel + activations(tier) +
                   Overrides{"train.seq=128", "train.micro_batch=4", "model.hidden=128",
                             "model.layers=8", "memory.device=" + std::to_string(device)}));
  };
  const auto recomputed = plan_of("device", 0);
  const auto& suggestions = std::get<planner::Refusal>(recomputed).suggestions;
  ASSERT_EQ(suggestions.front().front().first, "memory.device");
  const std::uint64_t least = suggestions.front().front().second;
  for (const std::uint64_t device : {least, least + 2 * kMiB, least + 8 * kMiB}) {
    SCOPED_TRACE(device);
    const auto kept = plan_of("device", device);
    const auto left = plan_of("auto", device);
    ASSERT_TRUE(std::get<planner::Plan>(kept).options.recompute);
    EXPECT_FALSE(std::get<planner::Plan>(left).options.recompute);
    EXPECT_GT(std::get<planner::Plan>(left).activation_bytes.download, 0u);
    EXPECT_LT(std::get<planner::Plan>(left).simulation.total_s,
              std::get<planner::Plan>(kept).simulation.total_s);
  }
}

// From a budget that holds everything down to the least: what is spilled grows with what lacks.
TEST(SpilledParts, NoMoreMoveThanTheDeviceLacksRoomFor) {
  const TrainingBench bench;
  const auto plan_of = [&](std::uint64_t device) {
    return planned(bench.config(
        "run", kModel + Overrides{"train.seq=128", "train.micro_batch=4", "model.hidden=128",
                                  "model.layers=8", "recompute.policy=none", "train.accumulate=1",
                                  "memory.place.weight=pinned", "memory.prefetch=1",
                                  "memory.device=" + std::to_string(device)}));
  };
  const auto refused = plan_of(0);
  const std::uint64_t least =
      std::get<planner::Refusal>(refused).suggestions.front().front().second;
  const std::uint64_t most = std::get<planner::Plan>(plan_of(512 * kMiB)).peak_bytes[0];
  ASSERT_GT(most, least + 8 * kMiB);
  const auto spilled = [&](std::uint64_t device) {
    return std::get<planner::Plan>(plan_of(device)).activation_bytes.download;
  };
  const std::uint64_t all = spilled(least);
  const std::uint64_t few = spilled(most - 4 * kMiB);
  EXPECT_LT(few, all / 2);
  EXPECT_EQ(spilled(512 * kMiB), 0u);
  // What is sent away is at most what lacks, and one value more of one unit.
  EXPECT_LE(few, std::uint64_t{4} * kMiB + 2 * kMiB);
}

TEST(SpilledParts, ANameThatNothingWaitsUnderIsRefusedWithThoseThatAreKnown) {
  const TrainingBench bench;
  const auto refusal = [&](const std::string& entry) -> std::string {
    try {
      planned(bench.config("run", kModel + Overrides{"memory.place.saved." + entry}));
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string unknown = refusal("mlp_hiden=storage");
  EXPECT_EQ(unknown.rfind("memory.place.saved.mlp_hiden: nothing that is saved has this name", 0),
            0u)
      << unknown;
  const std::string of_head = refusal("head_normed=storage");
  EXPECT_EQ(of_head.rfind("memory.place.saved.head_normed: the head's passes follow", 0), 0u)
      << of_head;
  const std::string broken = refusal("a\nb=storage");
  EXPECT_EQ(broken.rfind("memory.place.saved.a?b: nothing", 0), 0u) << broken;
  EXPECT_LT(refusal(std::string(3000, 'q') + "=storage").size(), 1000u);
  for (const std::string& words : {unknown, of_head, broken}) {
    EXPECT_NE(words.find("\"mlp_hidden\""), std::string::npos) << words;
    EXPECT_EQ(words.find("\"head_"), std::string::npos) << words;
    EXPECT_EQ(words.find('\n'), std::string::npos);
  }
  EXPECT_EQ(refusal("head_normed=auto"), "accepted");
}

// The trace of a step has every spill and fetch, with the bytes that the plan says.
TEST(SpilledActivations, AreSpansOfTheTrace) {
  const TrainingBench bench;
  testing::PlannedSession run(
      bench.config("run", kModel + activations("storage") + places("pinned", "pinned", "pinned")));
  TraceRecorder trace;
  run.session().train_step(
      0, 1e-3,
      [&](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
        run.fill_tokens(microbatch, tokens, targets);
      },
      &trace);
  std::map<std::string, std::uint64_t> bytes;
  for (const TraceSpan& span : trace.spans()) {
    bytes[std::string(trace.name_of(span.name))] += span.bytes;
  }
  const schedule::LinkBytes& planned = run.plan().activation_bytes;
  EXPECT_GT(planned.download, 0u);
  EXPECT_EQ(bytes["SpillActivation"], planned.download);
  EXPECT_EQ(bytes["FetchActivation"], planned.upload);
  EXPECT_EQ(bytes["StorageWrite"], planned.storage_write);
  EXPECT_EQ(bytes["StorageRead"], planned.storage_read);
}

}  // namespace
}  // namespace sluice::train
