// Runs that spill activations: the bits of those that keep them, in less device memory.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "offload/storage_engine.hpp"
#include "tests/law1/same_bits.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// All micro-batches of a unit at a time: their activations do not fit on the device, and do
// elsewhere; left to the planner they go there.
TEST(SpilledActivations, TrainWhereTheDeviceCannotHoldThem) {
  const TrainingBench bench;
  const Overrides model =
      kSpillingLlama + Overrides{"train.seq=64",     "train.micro_batch=4",   "train.accumulate=12",
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
  for (const std::string& tier : sampled<std::string>({"storage", "pinned", "auto"})) {
    SCOPED_TRACE(tier);
    const TrainingRecord run = TrainingBench::run(with_device(tier, tier, spilled));
    expect_same_bits(run, reference);
    EXPECT_LE(run.plan.at("peak_bytes").at("device").get<std::uint64_t>(), spilled);
    const RunEvent& units = run.plan.at("units_by_tier").at("activation");
    EXPECT_TRUE(units.contains("pinned") || units.contains("storage")) << units;
  }
}

// Where nothing may leave the device and the inputs of all units do not fit, segments nest.
TEST(NestedSegments, TrainWithTheBitsOfNone) {
  const TrainingBench bench;
  const Overrides model = small_gpt2(24, 2) + kResident + activations("device") +
                          Overrides{"train.seq=128", "train.micro_batch=32", "train.accumulate=1"};
  const auto with_device = [&](const std::string& name, const std::string& policy,
                               std::uint64_t device) {
    return bench.config(name, model + Overrides{"recompute.policy=" + policy,
                                                "memory.device=" + std::to_string(device)});
  };
  const std::uint64_t least = least_device(with_device("least", "auto", 0));
  EXPECT_LT(least, least_device(with_device("least", "unit", 0)));
  const TrainingRecord nested = TrainingBench::run(with_device("nested", "auto", least));
  EXPECT_EQ(nested.plan.at("recompute").get<std::string>(), "nested");
  expect_same_bits(nested, TrainingBench::run(with_device("none", "none", 512 * kMiB)));
}

// The trace of a step has every spill and fetch, with the bytes that the plan says.
TEST(SpilledActivations, AreSpansOfTheTrace) {
  const TrainingBench bench;
  PlannedSession run(bench.config("run", kSpillingLlama + activations("storage") + kPinned));
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
