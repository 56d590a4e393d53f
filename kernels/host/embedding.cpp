// Embedding lookups and their gradient.
//
// The gradient of a table row is the sum over all positions with that token. A stable counting sort
// lists the rows of each token in order, in O(rows + vocab). A task then owns 32 table rows by 256
// columns and adds in row order, so no two tasks write the same element and the sums have one
// order.
#include "kernels/host/embedding.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/row_list.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

template <class T>
HWY_INLINE void add_rows_of(const T* a, const T* b, T* out, std::int64_t hidden) {
  for_lanes(0, hidden, [&](auto d, std::int64_t c) HWY_ATTR {
    store(d, hn::Add(load(d, a + c), load(d, b + c)), out + c);
  });
}

// out[out_row, :] = a[a_row, :] + b[b_row, :], all of `hidden` columns.
void add_rows(const void* a, std::int64_t a_row, const void* b, std::int64_t b_row, void* out,
              std::int64_t out_row, std::int64_t hidden, DType dtype) {
  as_stored(dtype, [&](auto as) HWY_ATTR {
    add_rows_of(as.in(a) + a_row * hidden, as.in(b) + b_row * hidden,
                as.out(out) + out_row * hidden, hidden);
  });
}

template <class T>
HWY_INLINE void sum_rows_of(const T* dout, const RowList& rows, T* out, std::int64_t hidden,
                            std::int64_t cols) {
  HWY_ALIGN float sums[kEmbeddingTile] = {};
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const T* const from = dout + rows[i] * hidden;
    for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, sums + c), load(d, from + c)), d, sums + c);
    });
  }
  for_lanes(0, cols,
            [&](auto d, std::int64_t c) HWY_ATTR { store(d, hn::LoadU(d, sums + c), out + c); });
}

// out[out_row, begin .. begin + cols) = sum of the same columns of dout over `rows`, rounded once.
void sum_rows(const void* dout, const RowList& rows, void* out, std::int64_t out_row,
              std::int64_t hidden, std::int64_t begin, std::int64_t cols, DType dtype) {
  as_stored(dtype, [&](auto as) HWY_ATTR {
    sum_rows_of(as.in(dout) + begin, rows, as.out(out) + out_row * hidden + begin, hidden, cols);
  });
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(add_rows);
HWY_EXPORT(sum_rows);

// Table rows of one task of the backward pass.
constexpr std::int64_t kTableRows = 32;

void check_float(DType type) {
  SLUICE_CHECK(is_act_dtype(type));
}

bool is_within(const TokenRange& range, std::int64_t token) {
  return token >= range.first && token < range.first + range.count;
}

// Sorts the numbers of rows with a token of the range by token, keeping their order. Afterwards
// ends[t] is one past the last place in `order` of the range's t-th token, so ends[t - 1] is its
// first place.
void sort_by_token(const std::int32_t* tokens, std::int64_t rows, const TokenRange& range,
                   std::int64_t* ends, std::int64_t* order) {
  std::fill_n(ends, range.count, std::int64_t{0});
  for (std::int64_t row = 0; row < rows; ++row) {
    SLUICE_CHECK_MSG(tokens[row] >= 0 && tokens[row] < range.vocab,
                     "a token lies outside the vocabulary");
    if (is_within(range, tokens[row])) ++ends[tokens[row] - range.first];
  }
  std::int64_t begin = 0;
  for (std::int64_t token = 0; token < range.count; ++token) {
    const std::int64_t count = ends[token];
    ends[token] = begin;
    begin += count;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    if (is_within(range, tokens[row])) order[ends[tokens[row] - range.first]++] = row;
  }
}

// table[r, :] = sum of dout over rows_of(r), for all r in [0, table_rows); zero for an empty list.
template <class RowsOf>
void sum_into_table(const Parallel& parallel, const void* dout, void* table,
                    std::int64_t table_rows, std::int64_t hidden, DType dtype,
                    const RowsOf& rows_of) {
  const std::int64_t tiles = (hidden + kEmbeddingTile - 1) / kEmbeddingTile;
  const std::int64_t pieces = (table_rows + kTableRows - 1) / kTableRows;
  const auto elem_bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
  parallel.for_each(pieces * tiles, [&](std::int64_t task) {
    const std::int64_t begin = task % tiles * kEmbeddingTile;
    const std::int64_t cols = std::min(kEmbeddingTile, hidden - begin);
    const std::int64_t first = task / tiles * kTableRows;
    const std::int64_t last = std::min(table_rows, first + kTableRows);
    for (std::int64_t row = first; row < last; ++row) {
      const RowList rows = rows_of(row);
      if (rows.count == 0) {
        std::memset(static_cast<std::byte*>(table) + (row * hidden + begin) * elem_bytes, 0,
                    static_cast<std::size_t>(cols * elem_bytes));
      } else {
        HWY_DYNAMIC_DISPATCH(sum_rows)(dout, rows, table, row, hidden, begin, cols, dtype);
      }
    }
  });
}

}  // namespace

void embedding_forward(const Parallel& parallel, const std::int32_t* tokens, TokenRange range,
                       const void* table, const void* positions, void* out, std::int64_t rows,
                       std::int64_t time, std::int64_t hidden, DType dtype) {
  check_float(dtype);
  SLUICE_CHECK(positions == nullptr || time > 0);
  const auto row_bytes = hidden * static_cast<std::int64_t>(dtype_bytes(dtype));
  const std::int64_t piece = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, hidden));
  parallel.for_blocks(rows, piece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const bool has_row = is_within(range, tokens[row]);
      const std::int64_t table_row = tokens[row] - range.first;
      std::byte* const to = static_cast<std::byte*>(out) + row * row_bytes;
      if (has_row && positions != nullptr) {
        HWY_DYNAMIC_DISPATCH(add_rows)
        (table, table_row, positions, row % time, out, row, hidden, dtype);
      } else if (has_row || positions != nullptr) {
        const auto* const from = static_cast<const std::byte*>(has_row ? table : positions);
        std::memcpy(to, from + (has_row ? table_row : row % time) * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      } else {
        std::memset(to, 0, static_cast<std::size_t>(row_bytes));
      }
    }
  });
}

std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows, std::int64_t vocab) {
  return static_cast<std::uint64_t>(rows + vocab) * sizeof(std::int64_t);
}

void embedding_backward(const Parallel& parallel, const std::int32_t* tokens, TokenRange range,
                        const void* dout, void* dtable, void* dpositions, std::int64_t rows,
                        std::int64_t time, std::int64_t max_time, std::int64_t hidden, DType dtype,
                        void* workspace) {
  check_float(dtype);
  auto* const ends = static_cast<std::int64_t*>(workspace);
  std::int64_t* const order = ends + range.count;
  sort_by_token(tokens, rows, range, ends, order);
  sum_into_table(parallel, dout, dtable, range.count, hidden, dtype, [&](std::int64_t token) {
    const std::int64_t begin = token == 0 ? 0 : ends[token - 1];
    return RowList{order + begin, 0, 0, ends[token] - begin};
  });
  if (dpositions == nullptr) return;
  SLUICE_CHECK_MSG(time > 0 && time <= max_time, "a sequence is longer than the position table");
  sum_into_table(parallel, dout, dpositions, max_time, hidden, dtype, [&](std::int64_t position) {
    const bool used = position < time && position < rows;
    return RowList{nullptr, position, time, used ? (rows - position + time - 1) / time : 0};
  });
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
