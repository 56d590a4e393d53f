#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "tests/support/thrown.hpp"

namespace sluice {
namespace {

TEST(Error, CarriesTheFactsAndSaysThem) {
  const OutOfMemory oom(Tier::kPinned, Category::kOptimizer, 3 << 20, 1024);
  EXPECT_EQ(oom.tier, Tier::kPinned);
  EXPECT_EQ(oom.requested_bytes, 3u << 20);
  EXPECT_EQ(oom.available_bytes, 1024u);
  EXPECT_EQ(oom.exit_status(), 3);
  EXPECT_EQ(std::string(oom.what()),
            "out of pinned memory: 3.00 MiB (3145728 bytes) asked for category optimizer, "
            "1.00 KiB (1024 bytes) available");

  const IoError io("write", "data/state.0", 4096, 512, ENOSPC);
  EXPECT_EQ(io.error_number, ENOSPC);
  EXPECT_EQ(std::string(io.what()),
            "write of 512 bytes at offset 4096 of 'data/state.0' failed: No space left on device");
  const IoError brief("read", "a", 0, 8, 0);
  EXPECT_TRUE(testing::mentions(brief.what(), "fewer bytes"));

  EXPECT_EQ(std::string(TimeoutError("lane h2d").what()),
            "the deadline passed while waiting for lane h2d");
  EXPECT_EQ(InputError("x").exit_status(), 2);
}

TEST(Error, CheckThrowsWithPlaceAndDetail) {
  int evaluated = 0;
  auto detail = [&] { return std::string("detail ") + std::to_string(++evaluated); };
  SLUICE_CHECK_MSG(1 + 1 == 2, detail());
  EXPECT_EQ(evaluated, 0);
  const std::string text =
      testing::message_of<InternalError>([&] { SLUICE_CHECK_MSG(1 + 1 == 3, detail()); });
  EXPECT_TRUE(testing::mentions(text, "1 + 1 == 3"));
  EXPECT_TRUE(testing::mentions(text, "detail 1"));
  EXPECT_TRUE(testing::mentions(text, "error_test.cpp:"));
}

TEST(Log, GoesToTheSinkAndNowhereElse) {
  log(LogLevel::kWarning, "dropped: no sink is set");
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, const std::string& line) {
    lines.push_back(std::to_string(static_cast<int>(level)) + line);
    // A sink may replace itself while it is called.
    if (lines.size() == 2) set_log_sink({});
  });
  log(LogLevel::kInfo, "a");
  log(LogLevel::kWarning, "b");
  log(LogLevel::kInfo, "c");
  EXPECT_EQ(lines, (std::vector<std::string>{"1a", "2b"}));
}

TEST(Log, MayBeCalledWhileTheSinkChanges) {
  std::jthread writer([](const std::stop_token& stop) {
    while (!stop.stop_requested()) log(LogLevel::kDebug, "x");
  });
  for (int i = 0; i < 200; ++i)
    set_log_sink(
        [copy = std::string(64, 'y')](LogLevel, const auto&) { EXPECT_EQ(copy.size(), 64u); });
  writer.request_stop();
  writer.join();
  set_log_sink({});
}

}  // namespace
}  // namespace sluice
