// Crashes of a durable run, as its disk sees them. The thousands are in durable_crash_sweep_test.
#include "tests/support/crash_run.hpp"

namespace sluice::train {
namespace {

using testing::CrashRun;
using testing::expect_every_crash_recovers;
using testing::places;

TEST(DurableCrash, LeavesTheLastCommitOrAWholeLaterOne) {
  expect_every_crash_recovers(120);
}

TEST(DurableCrash, CommitsWereOfTheStepsAskedFor) {
  const CrashRun run(places("pinned", "pinned", "storage"));
  EXPECT_EQ(run.committed_steps(), (std::vector<std::int64_t>{2, 4, 6, 7}));
}

// The control: on a disk that ignores flushes, the same crashes do lose committed state. So the
// flushes are the protection.
TEST(DurableCrash, WouldLoseCommitsWithoutTheFlushOfTheDataOrOfTheLog) {
  const CrashRun run(places("storage", "storage", "storage"));
  for (const std::string lies : {offload::StripedSpace::kKeptSuffix, ".log"}) {
    int lost = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      lost += run.breach(run.operations(), seed, lies).has_value() ? 1 : 0;
    }
    EXPECT_GT(lost, 20) << lies;
  }
}

}  // namespace
}  // namespace sluice::train
