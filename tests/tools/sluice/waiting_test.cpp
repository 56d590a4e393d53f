// Time that a person waits: how much of it is left, and a notice while nothing else is printed.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tools/sluice/time_left.hpp"
#include "tools/sluice/waiting_notice.hpp"

namespace sluice::testing {
namespace {

TEST(TimeLeft, IsTheMedianOfRecentStepsTimesTheRest) {
  cli::TimeLeft left;
  EXPECT_EQ(left.seconds_for(100), 0);
  left.add_step(60);  // the first step is slow
  EXPECT_DOUBLE_EQ(left.seconds_for(10), 600);
  for (int i = 0; i < 4; ++i) left.add_step(2);
  EXPECT_DOUBLE_EQ(left.seconds_for(10), 20);
  left.add_step(500);  // a checkpoint
  EXPECT_DOUBLE_EQ(left.seconds_for(10), 20);
}

TEST(TimeLeft, FollowsARunThatChangesItsPace) {
  cli::TimeLeft left;
  for (int i = 0; i < 1000; ++i) left.add_step(2);
  for (int i = 0; i < 32; ++i) left.add_step(5);
  EXPECT_DOUBLE_EQ(left.seconds_for(1), 5);
}

TEST(WaitingNotice, RepeatsUntilTheWaitEnds) {
  std::promise<void> told_twice;
  std::atomic<int> calls{0};
  {
    cli::WaitingNotice notice(
        [&](double seconds) {
          EXPECT_GE(seconds, 0);
          if (++calls == 2) told_twice.set_value();
        },
        std::chrono::milliseconds(0), std::chrono::milliseconds(1));
    told_twice.get_future().wait();
  }
  const int at_the_end = calls;
  EXPECT_GE(at_the_end, 2);
}

TEST(WaitingNotice, SaysNothingAboutAShortWait) {
  std::atomic<int> calls{0};
  {
    cli::WaitingNotice notice([&](double) { ++calls; }, std::chrono::hours(1),
                              std::chrono::hours(1));
  }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace sluice::testing
