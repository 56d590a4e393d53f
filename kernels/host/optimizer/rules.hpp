// The rules of kernels/optimizer.hpp on the host, one fused pass each over gradient, states and
// weight; each in a file of its own.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/optimizer.hpp"

namespace sluice::host {

class Parallel;

// Elements to a task. At most 28 bytes for each, of gradient, states and weight: about 0.5 MiB,
// within an L2.
inline constexpr std::int64_t kUpdatePieceElems = 16384;

void adamw(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
           std::span<const ParameterSegment> segments, const UpdateScalars& scalars);

}  // namespace sluice::host
