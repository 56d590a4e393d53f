// A sample of the fault sweep (fault_sweep_test.cpp fails every operation).
#include "tests/support/fault_sweep.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kRuns = 42;

void sample(const std::string& engine) {
  const testing::FaultSweep sweep(engine);
  EXPECT_GT(sweep.operations(), 100u);
  std::uint64_t run = 0;
  for (const auto fault :
       {StorageFault::kEio, StorageFault::kEnospc, StorageFault::kShortTransfer}) {
    for (const bool forever : {false, true}) {
      // Interleaved, so that the kinds together meet kRuns different operations.
      for (std::uint64_t i = 0; i < kRuns / 6; ++i) {
        sweep.expect_right_bits_or_error({fault, run * sweep.operations() / kRuns, forever});
        run = (run + 6) % kRuns;
      }
      ++run;
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
