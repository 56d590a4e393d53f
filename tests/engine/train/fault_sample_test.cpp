// A sample of the fault sweep (fault_sweep_test.cpp fails every operation).
#include "tests/support/fault_sweep.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using testing::operator+;

void sample(const testing::FaultSweep& sweep, std::uint64_t at_least) {
  const std::uint64_t runs_of_each = testing::samples_sweeps() ? 1 : 2;
  const std::uint64_t runs = testing::kEveryFault.size() * 2 * runs_of_each;
  EXPECT_GT(sweep.operations(offload::StorageFault::kEio), at_least);
  EXPECT_GT(sweep.operations(offload::StorageFault::kCallEintr), at_least);
  std::uint64_t run = 0;
  for (const offload::StorageFault fault : testing::kEveryFault) {
    for (const bool forever : {false, true}) {
      for (std::uint64_t i = 0; i < runs_of_each; ++i) {
        // A stride without a common divisor: together the kinds meet `runs` different operations,
        // and each meets some early and some late.
        const std::uint64_t at = run++ * 17 % runs;
        sweep.expect_right_bits_or_error({fault, at * sweep.operations(fault) / runs, forever});
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
