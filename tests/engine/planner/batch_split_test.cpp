// train.micro_batch = "auto": the division of a batch into micro-batches.
#include "engine/planner/batch_split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support/holds.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/thrown.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

Overrides divided_model(std::int64_t batch) {
  return {"model.layers=2",  "model.hidden=64", "model.heads=4",
          "model.vocab=256", "train.seq=128",   "train.batch=" + std::to_string(batch)};
}

train::Prepared prepared(const config::Config& config) {
  return train::prepare_with(config, HardwareProfile{}, one_threaded_backend(config));
}

// Every division planned by itself, and the best of them by name.
TEST(BatchSplit, TakesTheFastestDivisionThatFits) {
  const TrainingBench bench;
  std::size_t refused = 0;
  std::size_t not_the_largest = 0;
  for (const std::string device : {"64MiB", "16MiB", "12MiB"}) {
    SCOPED_TRACE(device);
    const Overrides base =
        divided_model(12) + Overrides{"memory.device=" + device, "recompute.policy=none",
                                      "memory.place.activation=device"};
    std::map<std::int64_t, double> seconds;
    for (const std::int64_t size : {1, 2, 3, 4, 6, 12}) {
      auto fixed = prepared(
          bench.config("run", base + Overrides{"train.micro_batch=" + std::to_string(size)}));
      EXPECT_TRUE(fixed.splits.empty());
      EXPECT_EQ(fixed.config.train.accumulate, 12 / size);
      if (fixed.plan() == nullptr) {
        ++refused;
      } else {
        seconds[size] = fixed.plan()->simulation.total_s;
      }
    }
    ASSERT_FALSE(seconds.empty());
    const auto best = std::min_element(
        seconds.begin(), seconds.end(),
        [](const auto& one, const auto& other) { return one.second < other.second; });
    auto chosen = prepared(bench.config("run", base + Overrides{"train.micro_batch=auto"}));
    ASSERT_NE(chosen.plan(), nullptr);
    EXPECT_EQ(chosen.plan()->simulation.total_s, best->second);
    EXPECT_EQ(chosen.config.train.micro_batch * chosen.config.train.accumulate, 12);
    EXPECT_EQ(seconds.at(chosen.config.train.micro_batch), best->second);
    not_the_largest += chosen.config.train.micro_batch < 12;
    ASSERT_EQ(chosen.splits.size(), 6u);
    for (const TriedSplit& split : chosen.splits) {
      if (!split.step_s) continue;
      EXPECT_LE(split.bound_s, *split.step_s) << split.micro_batch;
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(not_the_largest, 0u);
}

TEST(BatchSplit, ARefusalIsThatOfSingleSamples) {
  const TrainingBench bench;
  const Overrides tight = divided_model(4) + Overrides{"memory.device=2MiB"};
  const auto single =
      prepared(bench.config("run", tight + Overrides{"train.micro_batch=1"})).refusal()->sentence();
  auto chosen = prepared(bench.config("run", tight + Overrides{"train.micro_batch=auto"}));
  ASSERT_NE(chosen.refusal(), nullptr);
  EXPECT_EQ(chosen.refusal()->sentence(), single);
}

// train.accumulate may not be given with "auto".
TEST(BatchSplit, AStepThatIsTooLongNamesTheKeyOfTheBatch) {
  const TrainingBench bench;
  const auto refusal_of = [&](const Overrides& batch) {
    return message_of<InputError>([&] {
      prepared(bench.config("run", Overrides{"model.layers=400", "model.hidden=64", "model.heads=4",
                                             "train.seq=4096"} +
                                       batch));
    });
  };
  EXPECT_TRUE(mentions(refusal_of({"train.batch=524287", "train.micro_batch=auto"}),
                       "can be planned; lower train.batch or model.layers"));
  EXPECT_TRUE(mentions(refusal_of({"train.micro_batch=1", "train.accumulate=524287"}),
                       "can be planned; lower train.accumulate or model.layers"));
}

// The run has the bits of the numbers that were chosen, names them in its configuration, and keeps
// them when it is resumed, on a machine that would choose others too.
TEST(BatchSplit, ARunKeepsTheNumbers) {
  const TrainingBench bench;
  const Overrides base =
      divided_model(6) + Overrides{"train.steps=4", "memory.device=12MiB", "recompute.policy=none",
                                   "memory.place.activation=device"};
  const Overrides open = base + Overrides{"train.micro_batch=auto"};
  train::TrainingOptions half;
  half.stop_at_step = 2;
  TrainingRecord run = TrainingBench::run(bench.config("auto", open), half);
  ASSERT_EQ(run.end, train::TrainingEnd::kDone);
  const auto size = run.plan.at("batch").at("micro_batch").get<std::int64_t>();
  EXPECT_LT(size, 6);
  EXPECT_EQ(run.plan.at("batch").at("tried").size(), 4u);

  const config::Config own = config::load_config(bench.first_run("auto") + "/config.toml");
  EXPECT_EQ(own.train.batch, 6);
  EXPECT_EQ(own.train.micro_batch, size);
  EXPECT_EQ(own.train.accumulate, 6 / size);

  train::TrainingOptions resume;
  resume.resume = bench.first_run("auto");
  EXPECT_TRUE(holds(message_of<InputError>([&] {
                      TrainingBench::run(bench.config("auto", open + Overrides{"train.batch=8"}),
                                         resume);
                    }),
                    "samples a step, and train.batch is 8 now"));
  run.append(
      TrainingBench::run(bench.config("auto", open + Overrides{"memory.device=64MiB"}), resume));
  EXPECT_EQ(run.plan.at("batch").at("micro_batch"), size);
  EXPECT_FALSE(run.plan.at("batch").contains("tried"));

  const TrainingRecord fixed = TrainingBench::run(
      bench.config("fixed", base + Overrides{"train.micro_batch=" + std::to_string(size)}));
  EXPECT_EQ(run.losses, fixed.losses);
  EXPECT_EQ(run.weights_hash, fixed.weights_hash);
}

}  // namespace
}  // namespace sluice::planner
