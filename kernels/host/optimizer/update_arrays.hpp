// How a chunk's update is shared out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/host/parallel.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::host {

// body(segment, begin, end) for all pieces of all segments: of at most piece_elems elements, cut at
// multiples of it; each near its master's memory.
template <class Body>
void for_segment_pieces(const Parallel& parallel, const UpdateArrays& arrays, std::int64_t elems,
                        std::int64_t piece_elems, std::span<const ParameterSegment> segments,
                        const Body& body) {
  const ElementMemory master{arrays.master,
                             arrays.weight_format == WeightFormat::kSplitBF16 ? 2u : 4u};
  parallel.for_blocks_near(master, elems, piece_elems, [&](std::int64_t begin, std::int64_t end) {
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
