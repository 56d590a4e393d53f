#include "engine/runtime/loss_scaler.hpp"

#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "base/rng.hpp"

namespace sluice::runtime {
namespace {

LossScaleRule dynamic(std::int64_t initial, std::int64_t window, std::int64_t patience = 1000) {
  return {true, initial, window, patience};
}

TEST(LossScaler, HalvesOnOverflowAndDoublesAfterAWindowOfGoodSteps) {
  LossScaler scaler(dynamic(1024, 3));
  const auto step = [&](bool overflow) {
    scaler.finish_step(overflow);
    return scaler.scale();
  };
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_EQ(step(true), 512);
  EXPECT_EQ(step(false), 512);
  EXPECT_EQ(step(false), 512);
  EXPECT_EQ(step(true), 256) << "the window begins anew";
  EXPECT_EQ(step(false), 256);
  EXPECT_EQ(step(false), 256);
  EXPECT_EQ(step(false), 512);
  EXPECT_EQ(step(false), 512) << "another window for the next doubling";
  EXPECT_EQ(step(false), 512);
  EXPECT_EQ(step(false), 1024);
  EXPECT_EQ(scaler.state(), (LossScaleState{1024, 0, 0, 2}));
}

TEST(LossScaler, StaysBetweenOneAndItsMost) {
  LossScaler low(dynamic(2, 5));
  for (int i = 0; i < 5; ++i) low.finish_step(true);
  EXPECT_EQ(low.scale(), 1);
  LossScaler high(dynamic(kMaxLossScale / 2, 1));
  for (int i = 0; i < 5; ++i) high.finish_step(false);
  EXPECT_EQ(high.scale(), static_cast<double>(kMaxLossScale));
}

TEST(LossScaler, AStaticScaleStaysAndStillCounts) {
  LossScaler scaler({.dynamic = false, .initial = 4096, .window = 1, .patience = 2});
  scaler.finish_step(true);
  scaler.finish_step(false);
  scaler.finish_step(false);
  scaler.finish_step(true);
  EXPECT_EQ(scaler.scale(), 4096);
  EXPECT_EQ(scaler.state().skipped_steps, 2);
  EXPECT_FALSE(scaler.exhausted());
  scaler.finish_step(true);
  EXPECT_TRUE(scaler.exhausted());
}

TEST(LossScaler, IsExhaustedByOverflowsInARowOnly) {
  LossScaler scaler(dynamic(1 << 20, 100, 3));
  for (const bool overflow : {true, true, false, true, true}) {
    scaler.finish_step(overflow);
    EXPECT_FALSE(scaler.exhausted());
  }
  scaler.finish_step(true);
  EXPECT_TRUE(scaler.exhausted());
}

// Whatever has happened, a scaler that takes over the state goes on as the first one does.
TEST(LossScaler, ARestoredStateGoesOnAlike) {
  const CounterRng rng(3, stream_of("loss scaler"));
  for (std::uint64_t cut = 0; cut < 60; ++cut) {
    LossScaler whole(dynamic(65536, 4, 3)), resumed(dynamic(65536, 4, 3));
    for (std::uint64_t step = 0; step < 60; ++step) {
      if (step == cut) resumed.restore(whole.state());
      const bool overflow = rng.below(step, 4) == 0;
      whole.finish_step(overflow);
      if (step < cut) continue;
      resumed.finish_step(overflow);
      ASSERT_EQ(resumed.state(), whole.state()) << cut << " " << step;
      ASSERT_EQ(resumed.exhausted(), whole.exhausted());
    }
  }
}

}  // namespace
}  // namespace sluice::runtime
