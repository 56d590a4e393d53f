// Token and position embedding on the host. Arguments as in Kernels (kernels/kernels.hpp).
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

void embedding_forward(const Parallel& parallel, const std::int32_t* tokens, TokenRange range,
                       const void* table, const void* positions, void* out, std::int64_t rows,
                       std::int64_t time, std::int64_t hidden, DType dtype);

std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows, std::int64_t vocab);
// The workspace holds the rows sorted by token (stable counting sort), so that one task owns a row
// of dtable and adds in row order. Throws InternalError for a token outside the vocabulary.
void embedding_backward(const Parallel& parallel, const std::int32_t* tokens, TokenRange range,
                        const void* dout, void* dtable, void* dpositions, std::int64_t rows,
                        std::int64_t time, std::int64_t max_time, std::int64_t hidden, DType dtype,
                        void* workspace);

}  // namespace sluice::kernels::host
