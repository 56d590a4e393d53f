// Law 1 over resumes: a checkpoint has no trace of the ranks that wrote it, so any number of ranks
// goes on from it to the bits of the uninterrupted run.
#include <gtest/gtest.h>

#include "tests/support/sweep.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::train {
namespace {

using namespace testing;

config::Config config_of(const TrainingBench& bench, const std::string& run, int ranks,
                         const Overrides& settings) {
  return bench.config(
      run, kChosenByHand +
               Overrides{"model.layers=1", "model.hidden=32", "model.heads=2", "train.seq=16",
                         "train.micro_batch=1", "train.steps=4", "train.threads=1",
                         "data.eval_fraction=0.2", "train.eval_every=2", "memory.backend=host",
                         "parallel.data=" + std::to_string(ranks),
                         "parallel.zero=" + std::to_string(ranks > 1 ? 3 : 0)} +
               settings);
}

void expect_resumes(const TrainingBench& bench, int from, int to, const TrainingRecord& whole,
                    const Overrides& settings) {
  const std::string run = "run" + std::to_string(from) + "to" + std::to_string(to);
  SCOPED_TRACE(run);
  expect_resumed_bits(bench, run, config_of(bench, run, from, settings),
                      config_of(bench, run, to, settings), whole);
}

// From each of these numbers to 1, 2 and 4; sanitizers take a sample.
void expect_all_resume(const TrainingBench& bench, const std::vector<int>& from_ranks,
                       const TrainingRecord& whole, const Overrides& settings) {
  std::vector<std::pair<int, int>> pairs;
  for (const int to : {1, 2, 4}) {
    for (const int from : from_ranks) pairs.emplace_back(from, to);
  }
  const std::size_t count = sweep(pairs.size());
  for (std::size_t i = 0; i < count; ++i) {
    // Five is prime to twelve and to nine, so a sample has many different pairs.
    const auto& [from, to] = pairs[i * 5 % pairs.size()];
    expect_resumes(bench, from, to, whole, settings);
  }
}

TEST(RanksResume, AnyNumberFromAnyNumber) {
  const TrainingBench bench;
  const Overrides settings{"train.accumulate=12", "memory.place.optimizer=storage"};
  const TrainingRecord whole = train_in_world(config_of(bench, "whole", 1, settings));
  ASSERT_EQ(whole.losses.size(), 4u);
  expect_all_resume(bench, {1, 2, 3, 4}, whole, settings);
}

// Each rank commits its own ranges, and a resume reads those that it needs.
TEST(RanksResume, DurableRunsFromAnyNumberToAnyNumber) {
  const TrainingBench bench;
  const Overrides settings{"train.accumulate=12", "memory.place.optimizer=storage",
                           "memory.place.gradient=pinned", "checkpoint.mode=durable",
                           "checkpoint.every=1"};
  const TrainingRecord whole = train_in_world(config_of(bench, "whole", 1, settings));
  expect_all_resume(bench, {1, 2, 3, 4}, whole, settings);
}

// Sums of whole tensors follow their tensors from rank to rank.
TEST(RanksResume, WholeTensorsFromAnyNumberToAnyNumber) {
  const TrainingBench bench;
  for (const char* mode : {"checkpoint.mode=scratch", "checkpoint.mode=durable"}) {
    const char* rule = mode[16] == 's' ? "optimizer.name=adafactor" : "optimizer.name=muon";
    const Overrides settings{"train.accumulate=12", "memory.place.optimizer=storage",
                             "checkpoint.every=1", rule, mode};
    const std::string name = std::string(mode).substr(16);
    const TrainingRecord whole = train_in_world(config_of(bench, "whole-" + name, 1, settings));
    ASSERT_EQ(whole.losses.size(), 4u);
    const std::vector<std::pair<int, int>> pairs{{1, 3}, {3, 2}, {4, 1}, {2, 4}};
    for (const auto& [from, to] : sampled(pairs)) {
      expect_resumes(bench, from, to, whole, settings);
    }
  }
}

TEST(RanksResume, FourGroupsOnFewerRanks) {
  const TrainingBench bench;
  for (const char* mode : {"scratch", "durable"}) {
    const Overrides settings{"train.accumulate=4", "train.fold_groups=4", "train.precision=fp16",
                             "checkpoint.every=1", std::string("checkpoint.mode=") + mode};
    const std::string name = std::string("whole-") + mode;
    const TrainingRecord whole = train_in_world(config_of(bench, name, 1, settings));
    if (mode[0] == 's') {
      expect_all_resume(bench, {1, 2, 4}, whole, settings);
      continue;
    }
    for (const auto& [from, to] : sampled(
             std::vector<std::pair<int, int>>{{1, 4}, {2, 1}, {2, 4}, {4, 1}, {4, 2}, {1, 2}})) {
      expect_resumes(bench, from, to, whole, settings);
    }
  }
}

}  // namespace
}  // namespace sluice::train
