#include "base/run_id.hpp"

#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

TEST(RunId, IsAnotherEveryTime) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(make_run_id().hex());
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(RunId, RoundTrips) {
  const RunId id{0x0123456789abcdefu, 0xfedcba9876543210u};
  EXPECT_EQ(id.hex(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(parse_run_id(id.hex()), id);
}

TEST(RunId, AnyOtherTextIsNone) {
  for (const char* text :
       {"", "0123456789abcdeffedcba987654321", "0123456789abcdeffedcba98765432100",
        "0123456789ABCDEFFEDCBA9876543210", "0123456789abcdeffedcba987654321-"}) {
    EXPECT_FALSE(parse_run_id(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace sluice
