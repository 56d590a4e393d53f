// The rules of kernels/optimizer.hpp on a GPU. check_update() has checked segments and states. A
// format without a kernel throws InternalError. All functions queue on `stream`.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/stream.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels::cuda {

class GemmBackend;

void adamw(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
           std::span<const ParameterSegment> segments, const UpdateScalars& scalars);
void adam(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
          std::span<const ParameterSegment> segments, const UpdateScalars& scalars);
void sgd(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars);
void lion(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
          std::span<const ParameterSegment> segments, const UpdateScalars& scalars);

// Rules that need whole tensors; every segment is one. workspace: 256-byte aligned, of the size
// that the function next to the rule returns.
void adafactor(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
               std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
               void* workspace);
std::uint64_t adafactor_workspace_bytes(std::span<const ParameterSegment> segments);
void sm3(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars, void* workspace);
std::uint64_t sm3_workspace_bytes(std::span<const ParameterSegment> segments);
void muon(StreamHandle stream, GemmBackend& gemm, const OptimizerOptions& options,
          const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
          const UpdateScalars& scalars, void* workspace);
std::uint64_t muon_workspace_bytes(const GemmBackend& gemm,
                                   std::span<const ParameterSegment> segments);

}  // namespace sluice::kernels::cuda
