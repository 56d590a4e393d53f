// Token and position embedding on a GPU. Arguments as in Kernels (kernels/kernels.hpp); all
// functions queue on `stream`. Results equal the host's to the bit: sums are fp32 in row order.
// Errors: DeviceError if a launch fails, InternalError for a shape that breaks its bounds. A token
// outside [0, vocab) stops the device (a trap: every later call fails).
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Does not check tokens; embedding_backward does.
void embedding_forward(StreamHandle stream, const std::int32_t* tokens, TokenRange range,
                       const void* table, const void* positions, void* out, std::int64_t rows,
                       std::int64_t time, std::int64_t hidden, DType dtype);

std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows, std::int64_t vocab);
// Requires rows < 2^31.
void embedding_backward(StreamHandle stream, const std::int32_t* tokens, TokenRange range,
                        const void* dout, void* dtable, void* dpositions, std::int64_t rows,
                        std::int64_t time, std::int64_t max_time, std::int64_t hidden, DType dtype,
                        void* workspace);

}  // namespace sluice::kernels::cuda
