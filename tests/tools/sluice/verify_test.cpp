// `sluice verify`: the same bits in other ways to run, and a nonzero status where they differ.
#include "tools/verify/verify.hpp"

#include <cmath>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

class Verify : public CliTest {};

TEST_F(Verify, AConfigurationHasOneResultOnAllTiersAndRanks) {
  const auto before = snapshot();
  const ChildOutcome outcome =
      succeed({"verify", "config.toml", "--json", "--steps", "2", "--set", "train.accumulate=12"});
  EXPECT_TRUE(snapshot() == before) << "something stayed on the disk";
  std::map<std::string, std::string> results;
  for (const Json& event : events_of(outcome, "verify")) {
    results[event.at("variant")] = event.at("result");
  }
  EXPECT_EQ(results.size(), verify::list_variants({}).size() + 1);
  for (const auto& [variant, result] : results) {
    EXPECT_TRUE(result == "same" || variant == "the configuration as it is") << variant << result;
  }
}

// Two ranks cannot share three micro-batches.
TEST_F(Verify, WhatCannotRunIsSkippedWithItsReason) {
  const ChildOutcome outcome = succeed({"verify", "config.toml", "--steps", "1", "--set",
                                        "train.accumulate=3", "memory.device=12MiB"});
  EXPECT_TRUE(holds(outcome.out, "skipped  2 ranks, ZeRO-3: "));
  EXPECT_TRUE(holds(outcome.out, "train.accumulate is 3"));
}

// A durable configuration commits and goes on from a commit, alone and among ranks, and leaves
// nothing. Its updates are in the backward pass, before which a commit has to end.
TEST_F(Verify, ADurableConfigurationCommitsAndGoesOn) {
  const auto before = snapshot();
  const ChildOutcome outcome =
      succeed({"verify", "config.toml", "--steps", "2", "--set", "train.accumulate=12",
               "checkpoint.mode=durable", "train.clip=0", "optimizer.placement=in_backward"});
  EXPECT_TRUE(snapshot() == before) << "something stayed on the disk";
  const std::string said = outcome.out + outcome.err;
  EXPECT_TRUE(holds(said, "same     checkpoints in scratch mode")) << said;
  EXPECT_TRUE(holds(said, "same     4 ranks, ZeRO-3")) << said;
  EXPECT_FALSE(holds(said, "DIFFERS")) << said;
}

// The ring is outside law 1, and verify says so instead of comparing it with other numbers of
// ranks.
TEST_F(Verify, ARingIsNotComparedWithOtherNumbersOfRanks) {
  const ChildOutcome outcome =
      succeed({"verify", "config.toml", "--steps", "1", "--set", "parallel.data=3",
               "parallel.reduction=ring", "train.accumulate=3"});
  EXPECT_TRUE(holds(outcome.out,
                    "skipped  2 ranks, ZeRO-3: parallel.reduction = \"ring\" "
                    "makes results that depend on the number of ranks, 3"))
      << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "same     every unit recomputed")) << outcome.err;
  EXPECT_FALSE(holds(outcome.out, "DIFFERS")) << outcome.err;
}

// A variant that planned its own micro-batches would round otherwise.
TEST_F(Verify, AllRunsHaveTheMicroBatchesOfTheFirst) {
  const ChildOutcome outcome =
      run({"verify", "config.toml", "--steps", "2", "--set", "train.micro_batch=auto",
           "train.batch=8", "memory.device=12MiB"});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_FALSE(holds(outcome.out, "DIFFERS")) << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "verify   ")) << outcome.err;
  EXPECT_TRUE(holds(outcome.out, " compared, ")) << outcome.err;
}

TEST_F(Verify, TheFirstFigureThatDiffersIsNamed) {
  const verify::Figures expected{{1.5, 1.25}, {2, 3}, "00ff"};
  EXPECT_EQ(verify::find_difference(expected, expected), "");
  verify::Figures found = expected;
  found.losses[1] = std::nextafter(1.25, 2.0);
  EXPECT_EQ(verify::find_difference(expected, found),
            "the loss of step 2 is 1.2500000000000002 instead of 1.25");
  found = expected;
  found.norms[0] = 2.5;
  EXPECT_EQ(verify::find_difference(expected, found), "the norm of step 1 is 2.5 instead of 2");
  found = expected;
  found.weights_hash = "11";
  EXPECT_EQ(verify::find_difference(expected, found),
            "the weights have the hash 11 instead of 00ff");
}

}  // namespace
}  // namespace sluice::testing
