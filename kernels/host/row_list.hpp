// The rows of an output gradient that are added to one row of an embedding table.
#pragma once

#include <cstdint>

namespace sluice::kernels::host {

// Ascending row numbers: a list (by token), or every `step`-th row from `first` on (by position).
struct RowList {
  const std::int64_t* listed;  // null: first, first + step, ...
  std::int64_t first;
  std::int64_t step;
  std::int64_t count;

  std::int64_t operator[](std::int64_t i) const {
    return listed != nullptr ? listed[i] : first + i * step;
  }
};

// Columns that are summed at a time; their fp32 accumulators take 1 KiB of stack. Several tasks
// share the row of a very frequent token.
inline constexpr std::int64_t kEmbeddingTile = 256;

}  // namespace sluice::kernels::host
