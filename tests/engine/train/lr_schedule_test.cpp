#include "engine/train/lr_schedule.hpp"

#include <gtest/gtest.h>

namespace sluice::train {
namespace {

TEST(LrSchedule, RisesToThePeakAndFallsToATenthAtTheLastStep) {
  const LrSchedule schedule(LrSchedule::Shape::kCosine, 1e-3, 10, 111);
  EXPECT_FLOAT_EQ(schedule.lr_at(0), 1e-4f);
  EXPECT_EQ(schedule.lr_at(9), 1e-3f);
  EXPECT_EQ(schedule.lr_at(10), 1e-3f);
  EXPECT_FLOAT_EQ(schedule.lr_at(60), 5.5e-4f);  // half way: the mean of peak and final
  EXPECT_FLOAT_EQ(schedule.lr_at(110), 1e-4f);
  EXPECT_FLOAT_EQ(schedule.lr_at(1000), 1e-4f);
  for (std::int64_t step = 11; step <= 110; ++step) {
    EXPECT_LT(schedule.lr_at(step), schedule.lr_at(step - 1)) << step;
  }
}

TEST(LrSchedule, ConstantStaysAtThePeakAfterTheWarmup) {
  const LrSchedule schedule(LrSchedule::Shape::kConstant, 2e-3, 4, 10);
  EXPECT_FLOAT_EQ(schedule.lr_at(1), 1e-3f);
  EXPECT_EQ(schedule.lr_at(4), 2e-3f);
  EXPECT_EQ(schedule.lr_at(1000000), 2e-3f);
}

TEST(LrSchedule, DegenerateLengthsHaveFiniteRates) {
  EXPECT_EQ(LrSchedule(LrSchedule::Shape::kCosine, 1.0, 0, 1).lr_at(0), 1.0f);
  EXPECT_EQ(LrSchedule(LrSchedule::Shape::kCosine, 1.0, 50, 10).lr_at(9), 0.2f);
}

}  // namespace
}  // namespace sluice::train
