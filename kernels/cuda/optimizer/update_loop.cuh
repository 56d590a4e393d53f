// The loop of all elementwise rules. It handles the formats (formats.cuh); a rule is only
// arithmetic. A warp processes 128 elements of a segment. The list of segments travels in a
// launch's parameters, which hold 4 KiB; a longer list takes several launches. Segments with
// several runs of keys have a kernel of their own, so that all others do nothing for them.
//
// A rule is a struct that is passed by value:
//   kMoments  0 to 2: the moments that the loop reads and writes for it
//   kMaster   whether it updates the number that the weight is made from
//   Own       constants that differ between segments (trivially copyable)
//   float operator()(const Own&, std::int64_t at, float g, float& m, float& v, float w) const
//             element `at` of the segment: g is the gradient before grad_scale; returns the new w
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/cuda/optimizer/formats.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/simt.cuh"
#include "kernels/key_runs.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::kernels::cuda {

inline constexpr int kUpdateThreads = 256;
// A launch's parameters hold 4 KiB; the rest is room for parameters of the compiler.
inline constexpr std::size_t kMostParameterBytes = 4000;

template <class Own>
struct UpdateSegment {
  std::int64_t units_end = 0;  // units of this segment and those before it in the launch
  std::int64_t begin = 0, end = 0;
  std::int64_t base = 0;  // start of its first unit: at `begin`, or less than a unit before it
  std::uint64_t first_key = 0;
  Own own;
};

// With several runs of keys (kernels/key_runs.hpp); its units are theirs, and `base` has no
// meaning.
template <class Own>
struct RunsSegment : UpdateSegment<Own> {
  KeyRuns runs;
};

template <class Rule, template <class> class SegmentOf = UpdateSegment>
struct UpdateBatch {
  using Segment = SegmentOf<typename Rule::Own>;
  static constexpr std::size_t kFixedBytes =
      sizeof(UpdateArrays) + sizeof(Rule) + 2 * sizeof(std::int64_t);
  static constexpr int kMost =
      static_cast<int>((kMostParameterBytes - kFixedBytes) / sizeof(Segment));

  UpdateArrays arrays;
  Rule rule;
  std::int64_t units = 0;
  std::int64_t count = 0;
  Segment segments[kMost];
};

template <class Rule, class Moment>
__device__ void update_unit(const UpdateArrays& arrays, const Rule& rule,
                            const UpdateSegment<typename Rule::Own>& segment, std::int64_t base) {
  const ThreadElems elems{first_of_lane(base, lane_index()), segment.begin, segment.end};
  float g[kThreadElems] = {}, m[kThreadElems] = {}, v[kThreadElems] = {}, w[kThreadElems] = {};
  load_gradient(arrays, elems, g);
  if constexpr (Rule::kMaster) load_master(arrays, elems, w);
  if constexpr (Rule::kMoments >= 1) Moment::template load<1>(arrays.moment1, elems, m);
  if constexpr (Rule::kMoments >= 2) Moment::template load<2>(arrays.moment2, elems, v);
#pragma unroll
  for (int i = 0; i < kThreadElems; ++i) {
    if (elems.has(i)) w[i] = rule(segment.own, elems[i] - segment.begin, g[i], m[i], v[i], w[i]);
  }
  if constexpr (Rule::kMaster) store_master(arrays, elems, w);
  if constexpr (Rule::kMoments >= 1) {
    // An element before the segment has a key too: the difference is below first_key.
    const std::uint64_t key =
        segment.first_key + static_cast<std::uint64_t>(elems.first - segment.begin);
    const Moment to(arrays, key);
    to.template store<1>(arrays.moment1, elems, m);
    if constexpr (Rule::kMoments >= 2) to.template store<2>(arrays.moment2, elems, v);
  }
}

// Unit `number` of a segment.
template <class Rule, class Moment>
__device__ void update_unit_of(const UpdateArrays& arrays, const Rule& rule,
                               const UpdateSegment<typename Rule::Own>& segment,
                               std::int64_t number) {
  update_unit<Rule, Moment>(arrays, rule, segment, segment.base + number * kUnitElems);
}
template <class Rule, class Moment>
__device__ void update_unit_of(const UpdateArrays& arrays, const Rule& rule,
                               const RunsSegment<typename Rule::Own>& segment,
                               std::int64_t number) {
  const KeyUnit unit = key_unit(segment, kUnitElems, number);
  if (unit.is_empty()) return;
  UpdateSegment<typename Rule::Own> run = segment;
  run.begin = unit.run.begin;
  run.end = unit.run.end;
  run.first_key = unit.run.first_key;
  update_unit<Rule, Moment>(arrays, rule, run, unit.base);
}

template <class Rule, class Moment, template <class> class SegmentOf>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(const UpdateBatch<Rule, SegmentOf> batch) {
  const std::int64_t stride = grid_threads() / kWarpSize;
  for (std::int64_t unit = grid_thread() / kWarpSize; unit < batch.units; unit += stride) {
    int low = 0, high = static_cast<int>(batch.count) - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (unit < batch.segments[middle].units_end) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const std::int64_t before = low == 0 ? 0 : batch.segments[low - 1].units_end;
    const auto& segment = batch.segments[low];
    update_unit_of<Rule, Moment>(batch.arrays, batch.rule, segment, unit - before);
  }
}

// Start of a segment's first unit: at a block of 8-bit moments; at a multiple of 128 keys, which
// share their noise; otherwise at a multiple of a unit, so that accesses cover whole lines.
inline std::int64_t first_unit(DType moments, const ParameterSegment& segment) {
  if (moments == DType::kBlock8) return segment.begin;
  if (moments == DType::kBF16) {
    return segment.begin - static_cast<std::int64_t>(segment.first_key % kRoundingNoiseKeys);
  }
  return segment.begin / kUnitElems * kUnitElems;
}

// Sets the segment's first unit, and returns the number of its units.
template <class Own>
std::int64_t lay_out_units(DType moments, const ParameterSegment& segment, UpdateSegment<Own>& to) {
  to.base = first_unit(moments, segment);
  return (segment.end - to.base + kUnitElems - 1) / kUnitElems;
}
template <class Own>
std::int64_t lay_out_units(DType, const ParameterSegment& segment, RunsSegment<Own>& to) {
  to.runs = segment.runs;
  return key_run_count(segment) * units_of_key_run(segment, kUnitElems);
}

template <class Rule, template <class> class SegmentOf>
void launch_update(StreamHandle stream, DType moments, const UpdateBatch<Rule, SegmentOf>& batch) {
  constexpr int kUnitsToABlock = kUpdateThreads / kWarpSize;
  const std::int64_t blocks = (batch.units + kUnitsToABlock - 1) / kUnitsToABlock;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, kMaxGridX)));
  const dim3 block(kUpdateThreads);
  constexpr bool kRuns = std::is_same_v<SegmentOf<int>, RunsSegment<int>>;
  if constexpr (kRuns) {
    launch(stream, grid, block, 0, update_kernel<Rule, MomentBF16, SegmentOf>, batch);
  } else if constexpr (Rule::kMoments == 0) {
    launch(stream, grid, block, 0, update_kernel<Rule, MomentF32, SegmentOf>, batch);
  } else if (moments == DType::kBF16) {
    launch(stream, grid, block, 0, update_kernel<Rule, MomentBF16, SegmentOf>, batch);
  } else if (moments == DType::kBlock8) {
    launch(stream, grid, block, 0, update_kernel<Rule, MomentBlock8, SegmentOf>, batch);
  } else {
    launch(stream, grid, block, 0, update_kernel<Rule, MomentF32, SegmentOf>, batch);
  }
}

// Runs the rule over all segments. own_of(segment) returns the rule's Own. The keys of a segment
// are one run, or SegmentOf is RunsSegment.
template <template <class> class SegmentOf = UpdateSegment, class Rule, class OwnOf>
void run_update(StreamHandle stream, const UpdateArrays& arrays, const Rule& rule,
                std::span<const ParameterSegment> segments, const OwnOf& own_of) {
  const DType moments = Rule::kMoments == 0 ? DType::kF32 : arrays.moments;
  using Batch = UpdateBatch<Rule, SegmentOf>;
  Batch batch{arrays, rule, 0, 0, {}};
  static_assert(sizeof batch <= kMostParameterBytes);
  for (const ParameterSegment& segment : segments) {
    if (segment.begin == segment.end) continue;
    auto& to = batch.segments[batch.count++];
    batch.units += lay_out_units(moments, segment, to);
    to.units_end = batch.units;
    to.begin = segment.begin;
    to.end = segment.end;
    to.first_key = segment.first_key;
    to.own = own_of(segment);
    if (batch.count < Batch::kMost) continue;
    launch_update(stream, moments, batch);
    batch.units = batch.count = 0;
  }
  if (batch.count > 0) launch_update(stream, moments, batch);
}

// Updates by an elementwise rule, which does not look at an element's place in its segment: also
// for segments whose keys are several runs.
template <class Rule, class OwnOf>
void run_elementwise(StreamHandle stream, const UpdateArrays& arrays, const Rule& rule,
                     std::span<const ParameterSegment> segments, const OwnOf& own_of) {
  if constexpr (Rule::kMoments > 0) {
    const bool runs =
        arrays.moments == DType::kBF16 &&
        std::any_of(segments.begin(), segments.end(),
                    [](const ParameterSegment& segment) { return segment.runs.length != 0; });
    if (runs) return run_update<RunsSegment>(stream, arrays, rule, segments, own_of);
  }
  run_update(stream, arrays, rule, segments, own_of);
}

}  // namespace sluice::kernels::cuda
