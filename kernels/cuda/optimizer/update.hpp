// The update of a chunk on a GPU: checks, and the rule. Arguments as in Kernels
// (kernels/kernels.hpp), in device memory or in registered host memory, which a GPU accesses at the
// same address. Segments are read before the call returns. Queues on `stream`. Bits equal the
// host's, except for muon's products. (The payload of a NaN may differ.)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/stream.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels::cuda {

class GemmBackend;

std::uint64_t update_workspace_bytes(const GemmBackend& gemm, const OptimizerOptions& options,
                                     std::span<const ParameterSegment> segments);
void update(StreamHandle stream, GemmBackend& gemm, const OptimizerOptions& options,
            const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
            const UpdateScalars& scalars, void* workspace);

}  // namespace sluice::kernels::cuda
