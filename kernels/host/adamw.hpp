// The fused AdamW update on the host: one pass over gradient, master and moments. Arguments and the
// exact order of operations as in kernels/kernels.hpp (AdamWScalars). No fused multiply-add, IEEE
// square root and division, denormals kept: the bits are the same for every thread count, every
// instruction set and every way a tensor is cut into segments.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.hpp"

namespace sluice::host {

class Parallel;

// Elements to a task. 28 bytes for each, of gradient, states and weight: about 0.5 MiB, within an
// L2.
inline constexpr std::int64_t kAdamWPieceElems = 16384;

// Segments ascend and do not overlap; elements outside of all of them are neither read nor written.
// Throws InternalError for segments that leave [0, elems) or overlap, and for dtypes other than
// kBF16 and kF32.
void adamw(const Parallel& parallel, const AdamWBuffers& buffers,
           std::span<const ParameterSegment> segments, const AdamWScalars& scalars);

}  // namespace sluice::host
