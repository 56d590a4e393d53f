// How a chunk's update is shared out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/host/parallel.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::host {

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
