// Divides a trace into iterations, by marks or by repetition, and compares them.
//
// Two iterations are compared as sorted lists of shapes (bytes, stream, pool), so that an order
// that changes between them does not matter. find_stride tries the distances 1 to 8 and takes the
// first at which all iterations of the later half have nearly all shapes in common.
#include "allocator/record/iterations.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "allocator/record/iteration_period.hpp"

namespace sluice::record {
namespace {

constexpr double kSameShare = 0.99;
constexpr std::uint32_t kMaxStride = 8;

using Shape = std::array<std::uint64_t, 3>;  // bytes, stream, pool

Shape shape_of(const TraceAllocation& allocation) {
  return {allocation.bytes, allocation.stream, allocation.pool};
}

// The shapes of the allocations in a range, sorted.
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

// The share of allocations that two iterations have in common, relative to the larger one.
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
  std::vector<std::vector<Shape>> shapes;
  for (const IterationRange& range : result.ranges) {
    shapes.push_back(allocation_shapes(trace, range));
  }
  result.repeats_after = find_stride(shapes);
  return result;
}

}  // namespace sluice::record
