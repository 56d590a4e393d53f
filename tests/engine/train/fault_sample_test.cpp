// A sample of the fault sweep (fault_sweep_test.cpp fails every operation).
#include "tests/support/fault_sweep.hpp"

namespace sluice::train {
namespace {

using testing::operator+;

void sample(const testing::FaultSweep& sweep, std::uint64_t at_least) {
  constexpr std::uint64_t kRunsOfEach = 2;
  constexpr std::uint64_t kRuns = testing::kEveryFault.size() * 2 * kRunsOfEach;
  EXPECT_GT(sweep.operations(offload::StorageFault::kEio), at_least);
  EXPECT_GT(sweep.operations(offload::StorageFault::kCallEintr), at_least);
  std::uint64_t run = 0;
  for (const offload::StorageFault fault : testing::kEveryFault) {
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

TEST(TrainingFaults, EveryKindEndsRightOrWithAnError) {
  sample(testing::FaultSweep("posix"), 100);
}

TEST(TrainingFaults, ThroughIoUringToo) {
  const std::string reason = offload::io_uring_unavailable_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  sample(testing::FaultSweep("io_uring"), 100);
}

// Storage holds activations alone, between their passes.
TEST(TrainingFaults, FaultsOfSpilledActivationsEndRightOrWithAnError) {
  sample(testing::FaultSweep(
             "posix", testing::places("device", "device", "device") +
                          testing::Overrides{"model.layers=3", "memory.place.activation=storage",
                                             "memory.prefetch=0", "recompute.policy=none"}),
         30);
}

}  // namespace
}  // namespace sluice::train
