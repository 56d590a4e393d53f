// A sample of the fault sweep (fault_sweep_test.cpp fails every operation).
#include "tests/support/fault_sweep.hpp"

namespace sluice {
namespace {

void sample(const std::string& engine) {
  constexpr std::uint64_t kRunsOfEach = 2;
  constexpr std::uint64_t kRuns = testing::kEveryFault.size() * 2 * kRunsOfEach;
  const testing::FaultSweep sweep(engine);
  EXPECT_GT(sweep.operations(StorageFault::kEio), 100u);
  EXPECT_GT(sweep.operations(StorageFault::kCallEintr), 100u);
  std::uint64_t run = 0;
  for (const StorageFault fault : testing::kEveryFault) {
    for (const bool forever : {false, true}) {
      for (std::uint64_t i = 0; i < kRunsOfEach; ++i) {
        // A stride without a common divisor: together the kinds meet kRuns different operations,
        // and each meets some early and some late.
        const std::uint64_t at = run++ * 17 % kRuns;
        sweep.expect_right_bits_or_error({fault, at * sweep.operations(fault) / kRuns, forever});
      }
    }
  }
}

TEST(TrainingFaults, OfAnyKindEndRightOrWithAnError) {
  sample("posix");
}

TEST(TrainingFaults, ThroughIoUringToo) {
  const std::string reason = io_uring_unavailable_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  sample("io_uring");
}

}  // namespace
}  // namespace sluice
