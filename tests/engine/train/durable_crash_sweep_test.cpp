// 12,000 crashes of durable runs, as their disks see them (durable_crash_test.cpp).
#include "tests/support/crash_run.hpp"

namespace sluice::train {
namespace {

TEST(DurableCrashSweep, EveryCrashLeavesTheLastCommitOrAWholeLaterOne) {
  testing::expect_every_crash_recovers(3000);
}

}  // namespace
}  // namespace sluice::train
