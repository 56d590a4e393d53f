#include "tools/report/trace_analysis.hpp"

#include <algorithm>
#include <set>
#include <string_view>

namespace sluice::report {

namespace {

constexpr std::array<std::string_view, 7> kLaneOrder{
    "compute", "h2d", "d2h", "comm", "storage_read", "storage_write", "optimizer"};
constexpr std::int64_t kShortestStallNs = 1000;
// An instruction that releases the compute lane may be stamped a little after the lane went on: two
// threads read the clock.
constexpr std::int64_t kClockSlackNs = 20000;

std::size_t lane_rank(std::string_view name) {
  return static_cast<std::size_t>(std::find(kLaneOrder.begin(), kLaneOrder.end(), name) -
                                  kLaneOrder.begin());
}

// Greedy interval partition: the first row that is free. Spans come by begin.
void part_rows(const TraceFile& trace, LaneView& lane) {
  std::vector<std::int64_t> row_end_ns;
  std::int64_t covered_until_ns = 0;
  for (const std::uint32_t index : lane.spans) {
    const TraceSpan& span = trace.spans[index];
    auto row = std::find_if(row_end_ns.begin(), row_end_ns.end(),
                            [&](std::int64_t end_ns) { return end_ns <= span.begin_ns; });
    if (row == row_end_ns.end()) row = row_end_ns.insert(row, 0);
    *row = span.end_ns;
    lane.rows.push_back(static_cast<std::uint32_t>(row - row_end_ns.begin()));
    lane.busy_ns +=
        std::max<std::int64_t>(0, span.end_ns - std::max(covered_until_ns, span.begin_ns));
    covered_until_ns = std::max(covered_until_ns, span.end_ns);
  }
  lane.row_count = static_cast<std::uint32_t>(row_end_ns.size());
}

// Finds what ended last in (begin, end + slack].
class EndIndex {
 public:
  EndIndex(const TraceFile& trace, std::string_view except_track) : trace_(trace) {
    for (std::uint32_t i = 0; i < trace.spans.size(); ++i) {
      if (trace.names[trace.spans[i].track] != except_track) by_end_.push_back(i);
    }
    std::stable_sort(by_end_.begin(), by_end_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return trace.spans[a].end_ns < trace.spans[b].end_ns;
    });
  }

  std::optional<std::uint32_t> last_within(std::int64_t begin_ns, std::int64_t end_ns) const {
    const auto after = std::upper_bound(by_end_.begin(), by_end_.end(), end_ns + kClockSlackNs,
                                        [&](std::int64_t time_ns, std::uint32_t index) {
                                          return time_ns < trace_.spans[index].end_ns;
                                        });
    if (after == by_end_.begin()) return std::nullopt;
    const std::uint32_t index = *(after - 1);
    if (trace_.spans[index].end_ns <= begin_ns) return std::nullopt;
    return index;
  }

 private:
  const TraceFile& trace_;
  std::vector<std::uint32_t> by_end_;
};

}  // namespace

std::vector<LaneView> lanes_of(const TraceFile& trace) {
  std::vector<LaneView> lanes;
  std::vector<std::size_t> lane_of_track(trace.names.size(), SIZE_MAX);
  for (std::uint32_t i = 0; i < trace.spans.size(); ++i) {
    std::size_t& lane = lane_of_track[trace.spans[i].track];
    if (lane == SIZE_MAX) {
      lane = lanes.size();
      lanes.push_back({trace.spans[i].track, {}, {}, 0, 0});
    }
    lanes[lane].spans.push_back(i);
  }
  for (LaneView& lane : lanes) part_rows(trace, lane);
  std::stable_sort(lanes.begin(), lanes.end(), [&](const LaneView& a, const LaneView& b) {
    return lane_rank(trace.names[a.track]) < lane_rank(trace.names[b.track]);
  });
  return lanes;
}

std::vector<Stall> stalls_of(const TraceFile& trace) {
  const std::string_view compute = kLaneOrder.front();
  const EndIndex others(trace, compute);
  std::vector<Stall> stalls;
  std::int64_t idle_since_ns = 0;
  const auto wait_until = [&](std::int64_t end_ns, std::optional<std::uint32_t> next) {
    if (end_ns - idle_since_ns >= kShortestStallNs) {
      stalls.push_back({idle_since_ns, end_ns, others.last_within(idle_since_ns, end_ns), next});
    }
  };
  bool computed = false;
  for (std::uint32_t i = 0; i < trace.spans.size(); ++i) {
    if (trace.names[trace.spans[i].track] != compute) continue;
    computed = true;
    wait_until(trace.spans[i].begin_ns, i);
    idle_since_ns = std::max(idle_since_ns, trace.spans[i].end_ns);
  }
  if (computed) wait_until(trace.end_ns, std::nullopt);
  return stalls;
}

MemorySeries memory_of(const TraceFile& trace, Tier tier, std::size_t max_samples) {
  // Which category a counter's name means, if any.
  std::vector<std::size_t> category_of(trace.names.size(), kCategoryCount);
  for (std::size_t name = 0; name < trace.names.size(); ++name) {
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      const std::string wanted =
          std::string(tier_name(tier)) + "/" + std::string(category_name(static_cast<Category>(c)));
      if (trace.names[name] == wanted) category_of[name] = c;
    }
  }
  using Values = std::array<double, kCategoryCount>;
  struct Sample {
    std::int64_t time_ns;
    Values values;
    double total;
  };
  const std::int64_t interval_ns = std::max<std::int64_t>(
      1, trace.end_ns / static_cast<std::int64_t>(std::max<std::size_t>(1, max_samples)) + 1);
  std::vector<Sample> samples;
  Values now{};
  Values greatest{};
  for (std::size_t i = 0; i < trace.counters.size();) {
    // What changes at one instant changes together: a release beside an allocation is no peak.
    const std::int64_t time_ns = trace.counters[i].time_ns;
    bool changed = false;
    for (; i < trace.counters.size() && trace.counters[i].time_ns == time_ns; ++i) {
      const std::size_t category = category_of[trace.counters[i].name];
      if (category == kCategoryCount) continue;
      changed = true;
      now[category] = trace.counters[i].value;
    }
    if (!changed) continue;
    double total = 0;
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      greatest[c] = std::max(greatest[c], now[c]);
      total += now[c];
    }
    const bool same_interval =
        !samples.empty() && samples.back().time_ns / interval_ns == time_ns / interval_ns;
    if (!same_interval) {
      samples.push_back({time_ns, now, total});
    } else if (total >= samples.back().total) {
      samples.back() = {time_ns, now, total};
    }
  }
  MemorySeries series;
  for (const Sample& sample : samples) {
    series.time_ns.push_back(sample.time_ns);
    series.peak_bytes = std::max(series.peak_bytes, sample.total);
  }
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    if (greatest[c] <= 0) continue;
    series.categories.push_back(static_cast<Category>(c));
    series.bytes.emplace_back();
    for (const Sample& sample : samples) series.bytes.back().push_back(sample.values[c]);
  }
  return series;
}

std::size_t step_count(const TraceFile& trace) {
  std::set<std::uint32_t> steps;
  for (const TraceSpan& span : trace.spans) steps.insert(span.step);
  return std::max<std::size_t>(1, steps.size());
}

}  // namespace sluice::report
