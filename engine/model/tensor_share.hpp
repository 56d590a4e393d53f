// The part of each layer that one rank of a tensor group holds (Shoeybi et al., "Megatron-LM:
// training multi-billion parameter language models using model parallelism", 2019).
//
// Column-parallel matrices are cut by rows of the stored [out, in] weight, so that a rank computes
// some of the outputs; row-parallel ones by columns, so that a rank adds its part to every output.
// Attention is cut by heads, and each rank has the key/value heads that its query heads use. The
// vocabulary is cut into runs of tokens that differ by one at most. Norms, the biases after a sum
// and positions are on every rank, with the same bits. With `sequence` a rank computes norms and
// sums of its own rows of each micro-batch, and all rows are gathered for the products.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"
#include "engine/model/layer.hpp"
#include "engine/model/unit_layout.hpp"
#include "engine/schedule/pass_segments.hpp"

namespace sluice::model {

struct TensorShare {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  // Between the sums each rank has some of the rows of a micro-batch (Korthikanti et al., "Reducing
  // activation recomputation in large transformer models", 2022). The ranks divide the rows.
  bool sequence = false;

  // Groups of such ranks with a part of each sequence: number `context_rank` of `contexts` (Jacobs
  // et al., "DeepSpeed Ulysses", 2023).
  std::int64_t contexts = 1;
  std::int64_t context_rank = 0;
  // These pass keys and values round a ring (Liu et al., 2023) and do not exchange heads. Each has
  // a chunk from the front and one from the back, so that all see as many keys.
  bool ring = false;

  bool is_whole() const { return ranks == 1; }
  bool cuts_sequences() const { return contexts > 1; }
  // Whether products are sums over the ranks. Those of a rank alone count as such.
  bool adds_products() const { return ranks > 1 || !cuts_sequences(); }
  bool exchanges_heads() const { return contexts > 1 && !ring; }
  bool passes_keys() const { return contexts > 1 && ring; }
  // Its part of `count` things that divide evenly.
  std::int64_t part(std::int64_t count) const { return count / ranks; }
  // Whether a rank has only its part of the rows outside of the products.
  bool cuts_rows() const { return sequence && ranks > 1; }
  std::int64_t own_rows(std::int64_t rows) const { return cuts_rows() ? rows / ranks : rows; }
  // The rank's rows in a buffer of all rows, of `cols` elements each.
  std::byte* own_part(std::byte* all, std::int64_t rows, std::int64_t cols, DType dtype) const {
    if (!cuts_rows()) return all;
    return all + static_cast<std::uint64_t>(rank * own_rows(rows) * cols) * dtype_bytes(dtype);
  }
  // How a product that every rank has a part of becomes a value of the ranks' rows.
  schedule::CutKind sum() const {
    return cuts_rows() ? schedule::CutKind::kScatter : schedule::CutKind::kSum;
  }
  // The rank's part of a batch's sequences. Of several sequences parts would not lie together.
  BatchShape own_batch(BatchShape batch) const {
    batch.seq /= contexts;
    return batch;
  }
  // The rows of a sequence that the rank has, in ascending runs. batch: its part.
  struct RowRun {
    std::int64_t first = 0, rows = 0;
  };
  std::vector<RowRun> row_runs(const BatchShape& batch) const {
    if (!passes_keys()) return {{context_rank * batch.seq, batch.rows()}};
    const std::int64_t chunk = batch.seq / 2;
    return {{context_rank * chunk, chunk}, {(2 * contexts - 1 - context_rank) * chunk, chunk}};
  }
  // Room for a copy of the rank's tokens or targets, if they do not lie together.
  std::uint64_t token_bytes(const BatchShape& batch) const {
    return passes_keys() ? static_cast<std::uint64_t>(batch.rows()) * sizeof(std::int32_t) : 0;
  }
  // The rank's tokens: where they are among all, or in `copy`.
  const std::int32_t* own_tokens(kernels::Kernels& kernels, const BatchShape& batch,
                                 const std::int32_t* all, std::byte* copy) const;
  // The gradients of whole tensors that context ranks have of their rows.
  std::vector<schedule::Cut> gradient_sum(const UnitLayout& layout, DType dtype) const {
    if (!cuts_sequences()) return {};
    return {{schedule::CutKind::kSum, schedule::CutValue::kGradient, 0, layout.elems(), dtype, 0,
             schedule::CutRanks::kContext}};
  }
  // Key/value heads: a rank has those of its query heads. Where there are more ranks than heads,
  // neighbours hold copies of one. Precondition of all three: one of both numbers divides the
  // other.
  std::int64_t kv_part(std::int64_t kv_heads) const {
    return std::max<std::int64_t>(kv_heads / ranks, 1);
  }
  std::int64_t first_kv_head(std::int64_t kv_heads) const { return rank * kv_heads / ranks; }
  // The ranks that have the same heads; the first of them counts theirs.
  std::int64_t sharers(std::int64_t kv_heads) const {
    return std::max<std::int64_t>(ranks / kv_heads, 1);
  }
  // A vector after a sum over the ranks is added by the first of them.
  bool is_first() const { return rank == 0; }
  // The tokens of a vocabulary: the first of them, and their number.
  std::int64_t first_token(std::int64_t vocab) const {
    return rank * (vocab / ranks) + std::min(rank, vocab % ranks);
  }
  std::int64_t tokens(std::int64_t vocab) const {
    return vocab / ranks + (rank < vocab % ranks ? 1 : 0);
  }
  std::int64_t most_tokens(std::int64_t vocab) const { return (vocab + ranks - 1) / ranks; }
  std::int64_t least_tokens(std::int64_t vocab) const { return vocab / ranks; }
  bool operator==(const TensorShare&) const = default;
};

// The part of a whole tensor that lies in these slices; the spec as it is if the share is the
// whole. Logical matrices (matrix_rows) have one slice each.
TensorSpec take_slices(TensorSpec whole, const TensorShare& share, std::vector<TensorSlice> slices);
// The rank's part of each of these runs of rows. Precondition: the ranks divide each of them.
TensorSpec take_rows(TensorSpec whole, const TensorShare& share,
                     const std::vector<std::int64_t>& runs);
// The rank's rows of query heads, and those of its key/value heads in the keys and in the values.
struct HeadRows {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};
TensorSpec take_heads(TensorSpec whole, const TensorShare& share, const HeadRows& of);
// The rank's part of the columns.
TensorSpec take_columns(TensorSpec whole, const TensorShare& share);
// Rows of the rank's tokens; all ranks reserve room for the largest part.
TensorSpec take_tokens(TensorSpec whole, const TensorShare& share);

}  // namespace sluice::model
