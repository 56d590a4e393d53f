// The rows of an output gradient that fall on one row of an embedding table.
#pragma once

#include <cstdint>

namespace sluice::kernels::host {

// Ascending row numbers: listed (by token), or every `step`-th from `first` on (by position).
struct RowList {
  const std::int64_t* listed;  // null: first, first + step, ...
  std::int64_t first;
  std::int64_t step;
  std::int64_t count;

  std::int64_t operator[](std::int64_t i) const {
    return listed != nullptr ? listed[i] : first + i * step;
  }
};

// Columns summed at a time: their fp32 accumulators are 1 KiB of stack. The row of a token that is
// everywhere is so shared by several tasks.
inline constexpr std::int64_t kEmbeddingTile = 256;

}  // namespace sluice::kernels::host
