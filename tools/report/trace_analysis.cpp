// Prepares a trace for drawing.
//
// Instructions of one lane may overlap: a storage lane has many transfers in flight. lanes_of puts
// each span on the first row that is free when it begins. Spans come by begin, so a greedy choice
// needs as many rows as spans overlap at most, which is the least number that there can be.
//
// A trace may have far more samples of memory than a chart has pixels. memory_of keeps one sample
// of each interval, the one with the greatest total, so that thinning never hides a peak.
#include "tools/report/trace_analysis.hpp"

#include <algorithm>
#include <set>
#include <string_view>

namespace sluice::report {

namespace {

constexpr std::array<std::string_view, 7> kLaneOrder{
    "compute", "h2d", "d2h", "comm", "storage_read", "storage_write", "optimizer"};
std::size_t lane_rank(std::string_view name) {
  return static_cast<std::size_t>(std::find(kLaneOrder.begin(), kLaneOrder.end(), name) -
                                  kLaneOrder.begin());
}

// Puts each span on the first free row, and sums the time that at least one span covers.
void assign_rows(const TraceFile& trace, LaneView& lane) {
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
  for (LaneView& lane : lanes) assign_rows(trace, lane);
  std::stable_sort(lanes.begin(), lanes.end(), [&](const LaneView& a, const LaneView& b) {
    return lane_rank(trace.names[a.track]) < lane_rank(trace.names[b.track]);
  });
  return lanes;
}

MemorySeries memory_of(const TraceFile& trace, Tier tier, std::size_t max_samples) {
  // The category that a counter's name stands for; kCategoryCount for none.
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
    // Changes at one instant count together: a release with an allocation makes no peak.
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
