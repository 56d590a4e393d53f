// The bytes that a block of a tensor group saves of each micro-batch, term by term.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.hpp"
#include "engine/model/model.hpp"

namespace sluice::testing {

// docs/design/tensor.md derives the terms of a layer's saved bytes. contexts: ranks that have parts
// of each sequence. exchanges: they exchange heads.
inline std::uint64_t saved_formula(const model::ModelShape& shape, const model::BatchShape& batch,
                                   std::int64_t ranks, bool sequence, std::int64_t contexts = 1,
                                   bool exchanges = false) {
  const std::int64_t head_dim = shape.head_dim(), ffn = shape.ffn / ranks;
  const std::int64_t kv_heads = std::max<std::int64_t>(shape.kv_heads / ranks, 1);
  const std::int64_t up = shape.is_llama() ? 2 * ffn : ffn;
  const std::int64_t rows = batch.rows() / contexts, own = sequence ? rows / ranks : rows;
  const auto elem = static_cast<std::int64_t>(dtype_bytes(batch.dtype));
  std::uint64_t bytes = 0;
  const auto add = [&](std::int64_t count, std::int64_t size) {
    bytes += round_up(static_cast<std::uint64_t>(count * size), kTensorAlignmentBytes);
  };
  add(rows * (shape.hidden / ranks + 2 * kv_heads * head_dim), elem);  // q, k, v
  // Attention's output, where heads are exchanged in both forms.
  add(rows * shape.hidden / ranks * (exchanges ? 2 : 1), elem);
  add(rows * up, elem);
  add(rows * ffn, elem);                                      // after the activation
  add(rows * shape.heads / ranks, sizeof(float));             // log-sum-exp
  for (int i = 0; i < 3; ++i) add(own * shape.hidden, elem);  // residual, both norms' outputs
  for (int i = 0; i < 4; ++i) add(own, sizeof(float));        // both norms' statistics
  return bytes;
}

}  // namespace sluice::testing
