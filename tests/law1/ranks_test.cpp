// Law 1 over ranks: any number of ranks and any ZeRO stage gives the losses, norms and weights of one
// rank, to the bit. Ranks are threads here; the bytes that they exchange are real.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/rank_sessions.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kSteps = 3;

struct RanksCase {
  int ranks = 2;
  int zero = 3;
  int fold_groups = 1;
  int accumulate = 4;
  Overrides settings;
};

Overrides small_model() {
  return {"model.layers=2",      "model.hidden=64", "model.heads=4",  "train.seq=16",
          "train.micro_batch=2", "train.steps=3",   "model.vocab=256"};
}

config::Config config_of(const TrainingBench& bench, const RanksCase& at, int ranks) {
  return bench.config("run", small_model() + at.settings +
                                 Overrides{"parallel.data=" + std::to_string(ranks),
                                           "parallel.zero=" + std::to_string(at.zero),
                                           "train.accumulate=" + std::to_string(at.accumulate),
                                           "train.fold_groups=" + std::to_string(at.fold_groups)});
}

// The run of one rank with the same settings, and the options that it was planned with.
struct Alone {
  RanksRecord record;
  schedule::StepOptions options;
};

Alone train_alone(const TrainingBench& bench, const RanksCase& at) {
  RanksCase alone = at;
  alone.zero = 0;
  const config::Config config = config_of(bench, alone, 1);
  PlannedSession planned(config);
  return {train_session(planned.session(), config, kSteps), planned.plan().options};
}

void expect_one_ranks_bits(const RanksCase& at) {
  SCOPED_TRACE(std::to_string(at.ranks) + " ranks, stage " + std::to_string(at.zero) + ", groups " +
               std::to_string(at.fold_groups) + ", " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  const Alone alone = train_alone(bench, at);
  const RanksRun run = train_on_ranks(config_of(bench, at, at.ranks), alone.options, kSteps);
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, alone.record);
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
}

TEST(Ranks, GiveOneRanksBits) {
  for (const int ranks : {2, 3, 4}) {
    for (const int zero : {0, 1, 2, 3}) {
      RanksCase at{ranks, zero, 1, ranks == 3 ? 6 : 4, {}};
      expect_one_ranks_bits(at);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sluice::train
