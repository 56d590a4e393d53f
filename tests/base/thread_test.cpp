#include "base/thread.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <future>
#include <string>
#include <thread>

#include "tests/support/thread_faults.hpp"
#include "tests/support/thrown.hpp"

namespace sluice {
namespace {

TEST(Thread, RunsItsBodyUnderItsName) {
  std::promise<void> named;
  std::string name;
  std::jthread thread = start_thread("a name that is too long", [&] {
    named.get_future().wait();
    std::array<char, 16> text{};
    pthread_getname_np(pthread_self(), text.data(), text.size());
    name = text.data();
  });
  named.set_value();
  thread.join();
  EXPECT_EQ(name, "a name that is ");
}

TEST(Thread, AStartThatFailsNamesTheThreadAndTheLimit) {
  const testing::FailThreadStart fault(1);
  bool ran = false;
  const auto error =
      testing::thrown_by<ThreadError>([&] { start_thread("lane h2d", [&ran] { ran = true; }); });
  EXPECT_STREQ(error.what(),
               "thread 'lane h2d' could not start: Resource temporarily unavailable; raise the "
               "limit of threads (the container's pids limit, or ulimit -u)");
  EXPECT_EQ(error.thread_name, "lane h2d");
  EXPECT_EQ(error.error_number, EAGAIN);
  EXPECT_EQ(error.exit_status(), 3);
  EXPECT_EQ(error.code(), "thread");
  EXPECT_FALSE(ran);
}

TEST(Thread, OnlyTheChosenStartFails) {
  const testing::FailThreadStart fault(2);
  EXPECT_NO_THROW(start_thread("first", [] {}));
  EXPECT_THROW(start_thread("second", [] {}), ThreadError);
  EXPECT_NO_THROW(start_thread("third", [] {}));
  EXPECT_EQ(fault.count(), 3u);
}

}  // namespace
}  // namespace sluice
