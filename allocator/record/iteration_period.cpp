// Finds the period of iteration_period.hpp in four steps.
//
// 1. The record becomes a sequence of allocations: a hash of each one's shape, and its lifetime.
// 2. Every run of 8 allocations is hashed. Each distinct run votes for the distance between its
//    last occurrences, with a vote for each earlier occurrence at the same distance. The distances
//    with the most votes are the candidates.
// 3. Each candidate is judged: walking back from the end, how far do at least 99% of the
//    allocations match the one a period before? The shortest candidate that covers nearly as much
//    as the best is the period. A multiple of it is taken only if it explains ten times as many
//    large allocations.
// 4. Among the runs that recur each period, the one with the least live memory before it marks
//    where iterations begin.
#include "allocator/record/iteration_period.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/units.hpp"

namespace sluice::record {
namespace {

constexpr std::size_t kRun = 8;
constexpr std::size_t kCandidates = 24;
constexpr double kLikeShare = 0.99;
constexpr std::uint8_t kCutOff = 255;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

// The record as a sequence of allocations.
struct AllocationSequence {
  std::vector<std::size_t> operations;  // the operation that makes each
  std::vector<std::uint64_t> shapes;    // hash of bytes, stream and pool
  std::vector<std::uint64_t> bytes;
  std::vector<std::uint8_t> lifetimes;    // log2 of allocations made until it is freed
  std::vector<std::uint64_t> live_bytes;  // before it
  std::size_t size() const { return shapes.size(); }
};

AllocationSequence read_sequence(const MemoryTrace& trace) {
  AllocationSequence sequence;
  constexpr std::size_t kUnknown = SIZE_MAX;
  std::vector<std::size_t> place(trace.allocations.size(), kUnknown);
  // Frees of earlier memory lower the count below its begin. Only differences matter.
  std::uint64_t live_bytes = std::uint64_t{1} << 62;
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    const TraceOperation& operation = trace.operations[i];
    if (operation.action == TraceAction::kAlloc) {
      const TraceAllocation& made = trace.allocations[operation.allocation];
      place[operation.allocation] = sequence.size();
      sequence.operations.push_back(i);
      sequence.shapes.push_back(mix(mix(mix(1, made.bytes), made.stream), made.pool));
      sequence.bytes.push_back(made.bytes);
      sequence.lifetimes.push_back(kCutOff);
      sequence.live_bytes.push_back(live_bytes);
      live_bytes += made.bytes;
    } else if (operation.action == TraceAction::kFree ||
               operation.action == TraceAction::kFreePending) {
      live_bytes -= trace.allocations[operation.allocation].bytes;
      const std::size_t made = place[operation.allocation];
      if (made == kUnknown) continue;
      sequence.lifetimes[made] = static_cast<std::uint8_t>(std::bit_width(sequence.size() - made));
    }
  }
  return sequence;
}

// The positions of each distinct run of kRun allocations.
class RunIndex {
 public:
  RunIndex(const AllocationSequence& sequence, bool with_lifetimes) {
    if (sequence.size() < kRun) return;
    const std::size_t count = sequence.size() - kRun + 1;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> runs;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t hash = 7;
      for (std::size_t k = i; k < i + kRun; ++k) {
        hash = mix(hash, sequence.shapes[k]);
        if (with_lifetimes) hash = mix(hash, sequence.lifetimes[k]);
      }
      runs.emplace_back(hash, static_cast<std::uint32_t>(i));
    }
    std::sort(runs.begin(), runs.end());
    groups_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (i == 0 || runs[i].first != runs[i - 1].first) starts_.push_back(i);
      positions_.push_back(runs[i].second);
      groups_[runs[i].second] = static_cast<std::uint32_t>(starts_.size() - 1);
    }
    starts_.push_back(count);
  }

  std::size_t group_count() const { return starts_.empty() ? 0 : starts_.size() - 1; }
  std::size_t run_count() const { return groups_.size(); }
  // In ascending order.
  std::pair<const std::uint32_t*, const std::uint32_t*> occurrences(std::size_t group) const {
    return {positions_.data() + starts_[group], positions_.data() + starts_[group + 1]};
  }
  // The occurrence of the same run that is nearest to `position` - `distance`, if it is within
  // `tolerance`.
  std::optional<std::size_t> same_before(std::size_t position, std::size_t distance,
                                         std::size_t tolerance) const {
    if (position + tolerance < distance) return std::nullopt;
    const auto [first, last] = occurrences(groups_[position]);
    const std::int64_t aim =
        static_cast<std::int64_t>(position) - static_cast<std::int64_t>(distance);
    const auto* after = std::lower_bound(first, last, std::max<std::int64_t>(aim, 0));
    std::optional<std::size_t> best;
    std::int64_t best_error = static_cast<std::int64_t>(tolerance) + 1;
    for (const auto* one = after == first ? first : after - 1; one != last && one <= after; ++one) {
      const std::int64_t error = std::abs(static_cast<std::int64_t>(*one) - aim);
      if (*one < position && error < best_error) {
        best = *one;
        best_error = error;
      }
    }
    return best;
  }

 private:
  std::vector<std::uint32_t> positions_;  // by group, ascending within a group
  std::vector<std::size_t> starts_;       // of groups in positions_, and the end
  std::vector<std::uint32_t> groups_;     // by position
};

std::size_t tolerance_of(std::size_t period) {
  return period / 50 + std::min<std::size_t>(8, period / 10);
}

// The number of last occurrences that are `gap` apart, within tolerance.
std::size_t trailing_regular(const std::uint32_t* first, const std::uint32_t* last,
                             std::size_t gap) {
  std::size_t count = 1;
  for (const auto* one = last - 1; one != first; --one) {
    const std::size_t here = *one - *(one - 1);
    if (here + tolerance_of(gap) < gap || here > gap + tolerance_of(gap)) break;
    ++count;
  }
  return count;
}

void vote(const RunIndex& index, std::map<std::size_t, std::size_t>& votes) {
  for (std::size_t group = 0; group < index.group_count(); ++group) {
    const auto [first, last] = index.occurrences(group);
    if (last - first < 2) continue;
    const std::size_t gap = *(last - 1) - *(last - 2);
    votes[gap] += trailing_regular(first, last, gap);
    // A cut end may displace the last occurrence, so the gap before it gets a vote, too.
    if (last - first > 2) ++votes[*(last - 2) - *(last - 3)];
  }
}

// The distances with the most votes. Of several within tolerance, only the one with the most.
std::vector<std::size_t> candidate_periods(const AllocationSequence& sequence,
                                           const RunIndex& shapes, const RunIndex& full) {
  std::map<std::size_t, std::size_t> votes;
  vote(shapes, votes);
  vote(full, votes);
  std::vector<std::pair<std::size_t, std::size_t>> order;  // votes, period
  for (const auto& [period, count] : votes) {
    if (2 * period <= sequence.size()) order.emplace_back(count, period);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<std::size_t> periods;
  for (const auto& [count, period] : order) {
    const bool is_near =
        std::any_of(periods.begin(), periods.end(), [p = period](std::size_t other) {
          return p + tolerance_of(other) >= other && p <= other + tolerance_of(other);
        });
    if (!is_near) periods.push_back(period);
    if (periods.size() == kCandidates) break;
  }
  return periods;
}

// Neighbouring classes count as like. When a list is made and then freed, each item lives a little
// shorter than the one before, so a run may be matched with its neighbour.
bool is_like_lifetime(std::uint8_t a, std::uint8_t b) {
  return a == kCutOff || b == kCutOff || std::max(a, b) - std::min(a, b) <= 1;
}

// For each allocation, whether a like one stands `period` before it.
std::vector<bool> find_like(const AllocationSequence& sequence, const RunIndex& shapes,
                            std::size_t period) {
  std::vector<bool> is_like(sequence.size(), false);
  for (std::size_t i = 0; i < shapes.run_count(); ++i) {
    const auto before = shapes.same_before(i, period, tolerance_of(period));
    if (!before) continue;
    for (std::size_t k = 0; k < kRun; ++k) {
      if (is_like_lifetime(sequence.lifetimes[i + k], sequence.lifetimes[*before + k])) {
        is_like[i + k] = true;
      }
    }
  }
  return is_like;
}

struct Repetition {
  std::size_t period = 0;  // 0 if there is none
  std::size_t begin = 0;   // the first allocation of the repeating end
  // Allocations of 1 MiB or more in the record's later half that have no like one.
  std::size_t large_misses = 0;
};

Repetition judge_period(const AllocationSequence& sequence, const RunIndex& shapes,
                        std::size_t period) {
  const std::size_t n = sequence.size();
  const std::vector<bool> is_like = find_like(sequence, shapes, period);
  double count = 0, like_count = 0, bytes = 0, like_bytes = 0;
  std::size_t from = n;
  Repetition result;
  for (std::size_t i = n; i-- > 0;) {
    const auto size = static_cast<double>(sequence.bytes[i]);
    count += 1;
    bytes += size;
    if (is_like[i]) {
      like_count += 1;
      like_bytes += size;
      if (like_count >= kLikeShare * count && like_bytes >= kLikeShare * bytes) from = i;
    } else if (i >= n / 2 && sequence.bytes[i] >= kMiB) {
      ++result.large_misses;
    }
  }
  if (n - from < period) return result;
  result.period = period;
  result.begin = from > period ? from - period : 0;
  return result;
}

bool is_multiple(std::size_t large, std::size_t small) {
  const std::size_t nearest = (large + small / 2) / small * small;
  const std::size_t error = std::max(large, nearest) - std::min(large, nearest);
  return nearest > small && error <= tolerance_of(large);
}

Repetition find_repetition(const AllocationSequence& sequence, const RunIndex& shapes,
                           const RunIndex& full) {
  std::vector<Repetition> found;
  std::size_t longest = 0;
  for (const std::size_t period : candidate_periods(sequence, shapes, full)) {
    const Repetition one = judge_period(sequence, shapes, period);
    if (one.period == 0) continue;
    found.push_back(one);
    longest = std::max(longest, sequence.size() - one.begin);
  }
  // A multiple may cover one iteration more, because it tolerates more misses in the first.
  std::erase_if(found, [&](const Repetition& one) {
    return 10 * (sequence.size() - one.begin + one.period) < 9 * longest;
  });
  std::sort(found.begin(), found.end(),
            [](const Repetition& a, const Repetition& b) { return a.period < b.period; });
  Repetition best;
  for (const Repetition& one : found) {
    const bool explains_more = best.period != 0 && is_multiple(one.period, best.period) &&
                               best.large_misses > 10 * one.large_misses;
    if (best.period == 0 || explains_more) best = one;
  }
  return best;
}

// A run that recurs each period up to the end.
struct Anchor {
  std::vector<std::size_t> starts;  // positions in the sequence
  std::uint64_t live_bytes = 0;     // before the last occurrence but one
};

std::vector<Anchor> find_anchors(const AllocationSequence& sequence, const RunIndex& index,
                                 std::size_t period) {
  std::vector<Anchor> anchors;
  for (std::size_t group = 0; group < index.group_count(); ++group) {
    const auto [first, last] = index.occurrences(group);
    const std::size_t count = trailing_regular(first, last, period);
    const std::size_t next = *(last - 1) + period + tolerance_of(period) + kRun;
    if (count < 2 || next < sequence.size()) continue;
    anchors.push_back(
        {{last - static_cast<std::ptrdiff_t>(count), last}, sequence.live_bytes[*(last - 2)]});
  }
  return anchors;
}

// The occurrences of the run with the least live memory before it, among the runs that recur most.
// Runs with one occurrence less count, too, because the end may cut one off.
std::vector<std::size_t> iteration_starts(const AllocationSequence& sequence,
                                          const RunIndex& shapes, const RunIndex& full,
                                          std::size_t period) {
  std::vector<Anchor> anchors = find_anchors(sequence, shapes, period);
  std::vector<Anchor> more = find_anchors(sequence, full, period);
  std::move(more.begin(), more.end(), std::back_inserter(anchors));
  std::size_t most = 0;
  for (const Anchor& one : anchors) most = std::max(most, one.starts.size());
  const Anchor* best = nullptr;
  for (const Anchor& one : anchors) {
    if (one.starts.size() + 1 < most) continue;
    if (best == nullptr || one.live_bytes < best->live_bytes) best = &one;
  }
  return best == nullptr ? std::vector<std::size_t>{} : best->starts;
}

// Adds the starts after the last anchor. An anchor has kRun allocations, so that of a shorter
// period begins several whole iterations before the end.
void append_last_starts(const AllocationSequence& sequence, std::size_t period,
                        std::vector<std::size_t>& starts) {
  const auto shapes = sequence.shapes.begin();
  while (sequence.size() - starts.back() >= 2 * period) {
    const auto here = shapes + static_cast<std::ptrdiff_t>(starts.back());
    const auto next = here + static_cast<std::ptrdiff_t>(period);
    if (!std::equal(here, next, next)) return;
    starts.push_back(starts.back() + period);
  }
}

}  // namespace

std::vector<IterationRange> find_repeating_iterations(const MemoryTrace& trace) {
  const AllocationSequence sequence = read_sequence(trace);
  const RunIndex shapes(sequence, false);
  const RunIndex full(sequence, true);
  const Repetition repetition = find_repetition(sequence, shapes, full);
  std::vector<IterationRange> ranges;
  if (repetition.period == 0) return ranges;
  std::vector<std::size_t> starts = iteration_starts(sequence, shapes, full, repetition.period);
  if (starts.empty()) return ranges;
  append_last_starts(sequence, repetition.period, starts);
  std::size_t fewest = SIZE_MAX;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    ranges.push_back({sequence.operations[starts[i]], sequence.operations[starts[i + 1]]});
    fewest = std::min(fewest, starts[i + 1] - starts[i]);
  }
  // The last iteration is whole if the record goes on for as long as the shortest. Operations
  // beyond a period belong to the next.
  const std::size_t rest = sequence.size() - starts.back();
  if (rest >= fewest) {
    const std::size_t end = rest > repetition.period
                                ? sequence.operations[starts.back() + repetition.period]
                                : trace.operations.size();
    ranges.push_back({sequence.operations[starts.back()], end});
  }
  return ranges;
}

}  // namespace sluice::record
