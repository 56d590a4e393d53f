// Law 1 over resumes of tensor and context groups: groups of one size go on from a checkpoint or a durable
// commit of each other's to the bits of the whole run, in whatever mesh. Checkpoints of files have no trace
// of the groups; durable commits go on in groups of their size alone.
#include <gtest/gtest.h>

#include "tests/support/thrown.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::train {
namespace {

using namespace testing;

config::Config config_of(const TrainingBench& bench, const std::string& run, int data,
                         const std::string& groups, const std::string& mode) {
  return bench.config(
      run,
      Overrides{"model.layers=1", "model.hidden=32", "model.heads=2", "train.seq=16",
                "train.micro_batch=1", "train.steps=4", "train.threads=1", "train.accumulate=4",
                "data.eval_fraction=0.2", "train.eval_every=2", "memory.backend=host",
                "memory.place.optimizer=storage", "memory.place.gradient=pinned",
                "checkpoint.every=1", "parallel.data=" + std::to_string(data),
                "parallel.zero=" + std::to_string(data > 1 ? 3 : 0), groups, mode});
}

TEST(TensorResume, GroupsOfOneSizeGoOnToTheBitsOfTheWholeRun) {
  for (const char* groups : {"parallel.tensor=2", "parallel.context=2"}) {
    for (const char* mode : {"checkpoint.mode=scratch", "checkpoint.mode=durable"}) {
      SCOPED_TRACE(std::string(groups) + ", " + mode);
      const TrainingBench bench;
      const TrainingRecord whole = train_in_world(config_of(bench, "whole", 1, groups, mode));
      ASSERT_EQ(whole.losses.size(), 4u);
      for (const auto& [from, to] : {std::pair(1, 2), {2, 1}, {2, 2}}) {
        const std::string run = std::to_string(from) + "to" + std::to_string(to);
        SCOPED_TRACE(run);
        expect_resumed_bits(bench, run, config_of(bench, run, from, groups, mode),
                            config_of(bench, run, to, groups, mode), whole);
      }
    }
  }
}

TEST(TensorResume, DurableCommitsOfOtherGroupsAreRefusedByName) {
  const TrainingBench bench;
  const std::string mode = "checkpoint.mode=durable";
  TrainingOptions options;
  options.stop_at_step = 2;
  train_in_world(config_of(bench, "run", 1, "parallel.tensor=2", mode), options);
  TrainingOptions resume;
  resume.resume = bench.run_directory("run");
  const std::string words = message_of<InputError>(
      [&] { train_in_world(config_of(bench, "run", 1, "parallel.tensor=1", mode), resume); });
  EXPECT_NE(words.find("parallel.tensor = 2"), std::string::npos) << words;
}

}  // namespace
}  // namespace sluice::train
