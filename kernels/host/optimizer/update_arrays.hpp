// The division of a chunk's update into tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/key_runs.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::kernels::host {

// Elements of a task with a guard, which visits it in blocks: about a dozen tasks in all. The first
// block of each task is not cached when the guard visits it, so tasks should be large.
inline std::int64_t guarded_task_elems(std::int64_t elems) {
  constexpr std::int64_t kMost = 65536;
  const std::int64_t twelfth = elems / 12 / UpdateGuard::kElems * UpdateGuard::kElems;
  return std::clamp(twelfth, UpdateGuard::kElems, kMost);
}

// Calls body(run, begin, end) for the runs of keys that have elements [begin, end) of a segment,
// each as a segment of its own.
template <class Body>
void for_key_runs(const ParameterSegment& segment, std::int64_t begin, std::int64_t end,
                  const Body& body) {
  ParameterSegment run = segment;
  run.runs = {};
  for (std::int64_t number = key_run_number(segment, begin); begin < end; ++number) {
    const KeyRun keys = key_run(segment, number);
    run.begin = keys.begin;
    run.end = keys.end;
    run.first_key = keys.first_key;
    const std::int64_t to = std::min(keys.end, end);
    body(run, begin, to);
    begin = to;
  }
}

// Calls body(segment, begin, end) for all pieces of all segments. Pieces have at most
// update_task_elems elements, are cut at multiples of that, and run near their master's memory.
// With a guard pieces are smaller, and the guard visits each right before and after its bodies.
// If moments are rounded by keys, the keys of a piece follow each other.
template <class Body>
void for_segment_pieces(const Parallel& parallel, const UpdateArrays& arrays, std::int64_t elems,
                        std::span<const ParameterSegment> segments, const Body& body) {
  const auto visit = [&](std::int64_t begin, std::int64_t end) {
    auto segment = std::partition_point(
        segments.begin(), segments.end(),
        [begin](const ParameterSegment& before) { return before.end <= begin; });
    for (; segment != segments.end() && segment->begin < end; ++segment) {
      const std::int64_t from = std::max(begin, segment->begin);
      const std::int64_t to = std::min(end, segment->end);
      if (from >= to) continue;
      if (arrays.moments != DType::kBF16 || segment->runs.length == 0) {
        body(*segment, from, to);
      } else {
        for_key_runs(*segment, from, to, body);
      }
    }
  };
  const ElementMemory master{arrays.master,
                             arrays.weight_format == WeightFormat::kSplitBF16 ? 2u : 4u};
  if (arrays.guard == nullptr) {
    return parallel.for_blocks_near(master, elems, update_task_elems(elems, parallel.threads()),
                                    visit);
  }
  const std::int64_t task_elems = guarded_task_elems(elems);
  parallel.for_blocks_near(master, elems, task_elems, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += UpdateGuard::kElems) {
      const std::int64_t to = std::min(at + UpdateGuard::kElems, end);
      arrays.guard->before(at, to);
      visit(at, to);
      arrays.guard->after(at, to);
    }
  });
}

// Runs an elementwise rule over all segments. `range` is HWY_DYNAMIC_DISPATCH of the function that
// updates elements [begin, end) of one segment on the calling thread.
template <class Constants>
void update_segments(const Parallel& parallel, const OptimizerOptions& options,
                     const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
                     const UpdateScalars& scalars, const Constants& constants,
                     void (*range)(const UpdateArrays&, const Constants&, const UpdateScalars&,
                                   const ParameterSegment&, std::int64_t, std::int64_t)) {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  for_segment_pieces(parallel, arrays, buffers.elems, segments,
                     [&](const ParameterSegment& segment, std::int64_t begin, std::int64_t end) {
                       range(arrays, constants, scalars, segment, begin, end);
                     });
}

}  // namespace sluice::kernels::host
