#include "allocator/record/iterations.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "allocator/record/iteration_period.hpp"

namespace sluice::record {
namespace {

constexpr double kSameShare = 0.99;
constexpr std::uint32_t kMaxStride = 8;

bool ends_life(TraceAction action) {
  return action == TraceAction::kFree || action == TraceAction::kFreePending ||
         action == TraceAction::kFreeCompleted;
}

using Shape = std::array<std::uint64_t, 3>;  // bytes, stream, pool

Shape shape_of(const TraceAllocation& allocation) {
  return {allocation.bytes, allocation.stream, allocation.pool};
}

// Sorted.
std::vector<Shape> allocation_shapes(const MemoryTrace& trace, const IterationRange& range) {
  std::vector<Shape> shapes;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const TraceOperation& operation = trace.operations[i];
    if (operation.action == TraceAction::kAlloc) {
      shapes.push_back(shape_of(trace.allocations[operation.allocation]));
    }
  }
  std::sort(shapes.begin(), shapes.end());
  return shapes;
}

// [id]: how many allocations the record made before it; -1 for what was there at its start.
std::vector<std::int64_t> allocation_ordinals(const MemoryTrace& trace) {
  std::vector<std::int64_t> ordinals(trace.allocations.size(), -1);
  std::int64_t next = 0;
  for (const TraceOperation& operation : trace.operations) {
    if (operation.action == TraceAction::kAlloc) ordinals[operation.allocation] = next++;
  }
  return ordinals;
}

std::int64_t allocations_before(const MemoryTrace& trace, std::size_t operation) {
  return std::count_if(trace.operations.begin(),
                       trace.operations.begin() + static_cast<std::ptrdiff_t>(operation),
                       [](const TraceOperation& one) { return one.action == TraceAction::kAlloc; });
}

bool repeats_exactly(const MemoryTrace& trace, const IterationRange& a, const IterationRange& b,
                     const std::vector<std::int64_t>& ordinals) {
  if (a.end - a.begin != b.end - b.begin) return false;
  const std::int64_t first_a = allocations_before(trace, a.begin);
  const std::int64_t first_b = allocations_before(trace, b.begin);
  for (std::size_t i = 0; i < a.end - a.begin; ++i) {
    const TraceOperation& x = trace.operations[a.begin + i];
    const TraceOperation& y = trace.operations[b.begin + i];
    if (x.action != y.action) return false;
    if (x.action == TraceAction::kAlloc &&
        shape_of(trace.allocations[x.allocation]) != shape_of(trace.allocations[y.allocation])) {
      return false;
    }
    if (ends_life(x.action) &&
        ordinals[x.allocation] - first_a != ordinals[y.allocation] - first_b) {
      return false;
    }
  }
  return true;
}

double shared_part(const std::vector<Shape>& a, const std::vector<Shape>& b) {
  const std::size_t larger = std::max(a.size(), b.size());
  if (larger == 0) return 1.0;
  std::vector<Shape> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return static_cast<double>(common.size()) / static_cast<double>(larger);
}

std::vector<IterationRange> ranges_between_marks(const MemoryTrace& trace) {
  std::vector<std::size_t> marks;
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    if (trace.operations[i].action == TraceAction::kStep) marks.push_back(i);
  }
  std::vector<IterationRange> ranges;
  if (marks.size() < 2) return ranges;
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) ranges.push_back({marks[i], marks[i + 1]});
  const IterationRange last{marks.back(), trace.operations.size()};
  std::size_t fewest = SIZE_MAX;
  for (const IterationRange& range : ranges) {
    fewest = std::min(fewest, allocation_shapes(trace, range).size());
  }
  if (10 * allocation_shapes(trace, last).size() >= 9 * fewest) ranges.push_back(last);
  return ranges;
}

std::uint32_t find_stride(const std::vector<std::vector<Shape>>& shapes) {
  for (std::size_t stride = 1; stride <= kMaxStride && 2 * stride <= shapes.size(); ++stride) {
    const std::size_t first = std::max(stride, shapes.size() / 2);
    bool repeats = true;
    for (std::size_t i = first; i < shapes.size() && repeats; ++i) {
      repeats = shared_part(shapes[i - stride], shapes[i]) >= kSameShare;
    }
    if (repeats) return static_cast<std::uint32_t>(stride);
  }
  return 0;
}

}  // namespace

IterationMatch match_iterations(const MemoryTrace& trace, const IterationRange& a,
                                const IterationRange& b) {
  return {repeats_exactly(trace, a, b, allocation_ordinals(trace)),
          shared_part(allocation_shapes(trace, a), allocation_shapes(trace, b))};
}

Iterations find_iterations(const MemoryTrace& trace) {
  Iterations result;
  result.ranges = ranges_between_marks(trace);
  if (!result.ranges.empty()) {
    result.source = IterationSource::kMarks;
  } else {
    result.ranges = find_repeating_iterations(trace);
    if (result.ranges.empty()) return result;
    result.source = IterationSource::kRepetition;
  }
  const std::vector<std::int64_t> ordinals = allocation_ordinals(trace);
  std::vector<std::vector<Shape>> shapes;
  for (const IterationRange& range : result.ranges) {
    shapes.push_back(allocation_shapes(trace, range));
  }
  for (std::size_t i = 0; i + 1 < result.ranges.size(); ++i) {
    result.matches.push_back(
        {repeats_exactly(trace, result.ranges[i], result.ranges[i + 1], ordinals),
         shared_part(shapes[i], shapes[i + 1])});
  }
  result.repeats_after = find_stride(shapes);
  return result;
}

}  // namespace sluice::record
