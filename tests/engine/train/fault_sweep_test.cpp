// Every storage operation of a short run fails once and forever, in every way.
#include "tests/support/fault_sweep.hpp"

namespace sluice {
namespace {

void sweep(StorageFault fault, bool forever) {
  const testing::FaultSweep run("auto");
  for (std::uint64_t n = 0; n < run.operations(); ++n) {
    run.expect_right_bits_or_error({fault, n, forever});
  }
}

TEST(TrainingFaultSweep, EioOnce) {
  sweep(StorageFault::kEio, false);
}
TEST(TrainingFaultSweep, EioForever) {
  sweep(StorageFault::kEio, true);
}
TEST(TrainingFaultSweep, EnospcOnce) {
  sweep(StorageFault::kEnospc, false);
}
TEST(TrainingFaultSweep, EnospcForever) {
  sweep(StorageFault::kEnospc, true);
}
TEST(TrainingFaultSweep, ShortTransferOnce) {
  sweep(StorageFault::kShortTransfer, false);
}
TEST(TrainingFaultSweep, ShortTransferForever) {
  sweep(StorageFault::kShortTransfer, true);
}

}  // namespace
}  // namespace sluice
