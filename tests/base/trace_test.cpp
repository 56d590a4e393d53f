#include "base/trace.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.hpp"

namespace sluice {
namespace {

TEST(Trace, InternsEachNameOnce) {
  TraceRecorder trace;
  const TraceId compute = trace.intern("compute");
  const TraceId upload = trace.intern("h2d");
  EXPECT_NE(compute, upload);
  EXPECT_EQ(trace.intern(std::string("com") + "pute"), compute);
  const std::string_view first = trace.name_of(compute);
  for (int i = 0; i < 1000; ++i) trace.intern("name " + std::to_string(i));
  EXPECT_EQ(first, "compute");  // still valid after growth
  EXPECT_EQ(trace.name_of(upload), "h2d");
  EXPECT_THROW(trace.name_of(5000), InternalError);
}

TEST(Trace, UsesTheClockItIsGiven) {
  std::int64_t now = 41;
  TraceRecorder trace([&] { return ++now; });
  EXPECT_EQ(trace.now_ns(), 42);
  TraceRecorder steady;
  const std::int64_t before = steady.now_ns();
  EXPECT_LE(before, steady.now_ns());
}

TEST(Trace, JsonHoldsTheRecordedEvents) {
  TraceRecorder trace;
  const TraceId lane = trace.intern("lane \"quoted\" \\ \n\x01 ü");
  const TraceId op = trace.intern("Forward");
  constexpr auto kLargest = std::numeric_limits<std::uint64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  trace.span({lane, op, 10, 20, 3, 1, kLargest, 7});
  trace.span({op, lane, kLeast, 0, -1, -1, 0, 0});
  trace.counter(op, 15, 0.1);
  trace.counter(op, 16, std::numeric_limits<double>::infinity());

  const auto json = nlohmann::json::parse(trace.to_json());
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json["names"], nlohmann::json({"lane \"quoted\" \\ \n\x01 ü", "Forward"}));
  ASSERT_EQ(json["spans"].size(), 2u);
  const auto& span = json["spans"][0];
  ASSERT_EQ(span.size(), 8u);
  EXPECT_EQ(span[0], lane);
  EXPECT_EQ(span[1], op);
  EXPECT_EQ(span[2], 10);
  EXPECT_EQ(span[3], 20);
  EXPECT_EQ(span[4], 3);
  EXPECT_EQ(span[5], 1);
  EXPECT_EQ(span[6].get<std::uint64_t>(), kLargest);
  EXPECT_EQ(span[7], 7);
  EXPECT_EQ(json["spans"][1][2].get<std::int64_t>(), kLeast);
  EXPECT_EQ(json["spans"][1][4], -1);
  ASSERT_EQ(json["counters"].size(), 2u);
  EXPECT_EQ(json["counters"][0][2].get<double>(), 0.1);
  EXPECT_TRUE(json["counters"][1][2].is_null());

  trace.clear();
  const auto empty = nlohmann::json::parse(trace.to_json());
  EXPECT_TRUE(empty["spans"].empty());
  EXPECT_TRUE(empty["counters"].empty());
  EXPECT_EQ(empty["names"].size(), 2u);
}

TEST(Trace, ThreadsRecordTogether) {
  TraceRecorder trace;
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&trace, t] {
        for (int i = 0; i < kEach; ++i) {
          const TraceId id = trace.intern("op" + std::to_string(i % 10));
          trace.span({id, id, i, i + 1, t, -1, 0, 0});
          trace.counter(id, i, t);
        }
      });
    }
  }
  EXPECT_EQ(trace.spans().size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(trace.counters().size(), static_cast<std::size_t>(kThreads * kEach));
  for (const TraceSpan& span : trace.spans()) {
    ASSERT_EQ(trace.name_of(span.name), "op" + std::to_string(span.begin_ns % 10));
  }
}

}  // namespace
}  // namespace sluice
