#include "tools/report/trace_analysis.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sluice::report {
namespace {

// Random spans on three lanes, which may overlap. Every time is below `length`.
TraceFile random_trace(std::uint32_t seed, std::size_t spans, std::int64_t length) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  TraceFile trace;
  trace.names = {"optimizer", "compute", "somebody else's", "Op"};
  for (std::size_t i = 0; i < spans; ++i) {
    const std::int64_t begin = below(length);
    const std::int64_t end = begin + below(length - begin);
    trace.spans.push_back({static_cast<TraceId>(below(3)), 3, begin, end, -1, -1, 0, 1});
    trace.end_ns = std::max(trace.end_ns, end);
  }
  std::sort(trace.spans.begin(), trace.spans.end(),
            [](const TraceSpan& a, const TraceSpan& b) { return a.begin_ns < b.begin_ns; });
  return trace;
}

TEST(Lanes, RowsNeverOverlapAndBusyTimeIsCovered) {
  constexpr std::int64_t kLength = 500;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const TraceFile trace = random_trace(seed, 1 + seed % 40, kLength);
    std::size_t seen = 0;
    for (const LaneView& lane : lanes_of(trace)) {
      seen += lane.spans.size();
      std::vector<char> covered(kLength, 0);
      std::vector<std::int64_t> row_end(lane.row_count, 0);
      for (std::size_t i = 0; i < lane.spans.size(); ++i) {
        const TraceSpan& span = trace.spans[lane.spans[i]];
        ASSERT_EQ(span.track, lane.track);
        ASSERT_LT(lane.rows[i], lane.row_count);
        ASSERT_LE(row_end[lane.rows[i]], span.begin_ns) << "seed " << seed;
        row_end[lane.rows[i]] = span.end_ns;
        std::fill(covered.begin() + span.begin_ns, covered.begin() + span.end_ns, 1);
      }
      ASSERT_EQ(lane.busy_ns, std::count(covered.begin(), covered.end(), 1)) << "seed " << seed;
    }
    ASSERT_EQ(seen, trace.spans.size());
  }
}

TEST(Lanes, ComputeComesFirstAndUnknownTracksLast) {
  const TraceFile trace = random_trace(3, 60, 500);
  const auto lanes = lanes_of(trace);
  ASSERT_EQ(lanes.size(), 3u);
  EXPECT_EQ(trace.names[lanes[0].track], "compute");
  EXPECT_EQ(trace.names[lanes[1].track], "optimizer");
}

TEST(Memory, ThinningKeepsThePeak) {
  TraceFile trace;
  trace.names = {"device/weight", "device/activation", "pinned/weight", "device/unheard-of"};
  for (int i = 0; i < 100000; ++i) {
    trace.counters.push_back({static_cast<TraceId>(i % 2), i, 10.0});
    if (i == 54321) trace.counters.push_back({0, i, 990.0});
    trace.counters.push_back({3, i, 1e9});
  }
  trace.end_ns = 100000;
  const MemorySeries series = memory_of(trace, Tier::kDevice, 500);
  EXPECT_LE(series.time_ns.size(), 501u);
  EXPECT_EQ(series.peak_bytes, 1000.0);
  EXPECT_EQ(series.categories, (std::vector<Category>{Category::kWeight, Category::kActivation}));
  EXPECT_TRUE(memory_of(trace, Tier::kPinned, 500).time_ns.empty());
}

}  // namespace
}  // namespace sluice::report
