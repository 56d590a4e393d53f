// Keys of stochastic rounding in parts of tensors. An element's key is its index in the whole
// model, so the ranks of a tensor group round an element as one rank does. A segment of some
// columns has a run of keys for each row, and the keys of other columns between two runs. All other
// segments are one run. These functions take a ParameterSegment, or what a device makes of one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/parameter_segment.hpp"

namespace sluice::kernels {

// Elements [begin, end) of a chunk; their keys follow each other.
struct KeyRun {
  std::int64_t begin = 0, end = 0;
  std::uint64_t first_key = 0;
};

// The number of the run that has element `at` of the chunk.
template <class Segment>
constexpr std::int64_t key_run_number(const Segment& segment, std::int64_t at) {
  const KeyRuns& runs = segment.runs;
  return runs.length == 0 ? 0 : (runs.before + (at - segment.begin)) / runs.length;
}

// Precondition: the segment is not empty.
template <class Segment>
constexpr std::int64_t key_run_count(const Segment& segment) {
  return key_run_number(segment, segment.end - 1) + 1;
}

template <class Segment>
constexpr KeyRun key_run(const Segment& segment, std::int64_t number) {
  const KeyRuns& runs = segment.runs;
  if (runs.length == 0) return {segment.begin, segment.end, segment.first_key};
  const std::int64_t start = segment.begin - runs.before + number * runs.length;
  const std::int64_t begin = std::max(start, segment.begin);
  return {begin, std::min(start + runs.length, segment.end),
          segment.first_key + static_cast<std::uint64_t>(begin - segment.begin) +
              static_cast<std::uint64_t>(number * runs.skip)};
}

template <class Segment>
constexpr std::uint64_t key_at(const Segment& segment, std::int64_t at) {
  return segment.first_key + static_cast<std::uint64_t>(at - segment.begin) +
         static_cast<std::uint64_t>(key_run_number(segment, at) * segment.runs.skip);
}

// The part of a segment from element `begin` on.
template <class Segment>
constexpr Segment segment_from(Segment segment, std::int64_t begin) {
  const KeyRuns& runs = segment.runs;
  const std::uint64_t first_key = key_at(segment, begin);
  if (runs.length != 0) {
    segment.runs.before = (runs.before + (begin - segment.begin)) % runs.length;
  }
  segment.begin = begin;
  segment.first_key = first_key;
  return segment;
}

// Units of `elems` elements and as many keys, whose first keys are multiples of `elems`: as many
// for each run as any run needs, and the elements of one.
template <class Segment>
constexpr std::int64_t units_of_key_run(const Segment& segment, std::int64_t elems) {
  const std::int64_t longest =
      segment.runs.length == 0 ? segment.end - segment.begin : segment.runs.length;
  return (longest + 2 * elems - 2) / elems;
}
struct KeyUnit {
  KeyRun run;             // that the unit has elements of
  std::int64_t base = 0;  // its first element, which may lie in front of the run
  constexpr bool is_empty() const { return base >= run.end; }
};
template <class Segment>
constexpr KeyUnit key_unit(const Segment& segment, std::int64_t elems, std::int64_t number) {
  const std::int64_t units = units_of_key_run(segment, elems);
  const KeyRun run = key_run(segment, number / units);
  const auto past = static_cast<std::int64_t>(run.first_key % static_cast<std::uint64_t>(elems));
  return {run, run.begin - past + number % units * elems};
}

}  // namespace sluice::kernels
