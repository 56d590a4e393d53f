// The arrays of one update with their formats decided, as the vector code of stage_simd.hpp takes
// them; and how a chunk is shared out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/host/parallel.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::host {

enum class GradFormat : std::uint8_t { kF32, kBF16, kF16, kF32ThroughBF16, kF32ThroughF16 };
// Where the number that the rule updates is, and what else is written: a weight that is its own
// master; a master with a bf16 or fp16 weight beside it; a bf16 weight and what it lacks.
enum class WeightFormat : std::uint8_t { kF32, kMasterBF16, kMasterF16, kSplitBF16 };

struct UpdateArrays {
  GradFormat grad_format = GradFormat::kF32;
  WeightFormat weight_format = WeightFormat::kF32;
  DType moments = DType::kF32;
  const void* grad = nullptr;
  void* weight = nullptr;
  void* master = nullptr;  // kF32: the weight
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  // Of stochastic rounding.
  std::uint64_t seed = 0;
  std::int64_t step = 1;

  std::int64_t grad_elem_bytes() const {
    return grad_format == GradFormat::kBF16 || grad_format == GradFormat::kF16 ? 2 : 4;
  }
};

// Throws InternalError for formats that there are no kernels for.
UpdateArrays update_arrays(const OptimizerOptions& options, const UpdateBuffers& buffers,
                           const UpdateScalars& scalars);

// body(segment, begin, end) for all pieces of all segments: of at most kUpdatePieceElems elements,
// cut at multiples of it.
template <class Body>
void for_segment_pieces(const Parallel& parallel, std::int64_t elems, std::int64_t piece_elems,
                        std::span<const ParameterSegment> segments, const Body& body) {
  parallel.for_blocks(elems, piece_elems, [&](std::int64_t begin, std::int64_t end) {
    auto segment = std::partition_point(
        segments.begin(), segments.end(),
        [begin](const ParameterSegment& before) { return before.end <= begin; });
    for (; segment != segments.end() && segment->begin < end; ++segment) {
      const std::int64_t from = std::max(begin, segment->begin);
      const std::int64_t to = std::min(end, segment->end);
      if (from < to) body(*segment, from, to);
    }
  });
}

}  // namespace sluice::host
