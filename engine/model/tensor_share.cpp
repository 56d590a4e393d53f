// A part is a list of slices of the whole tensor, one above the other. With one rank the whole
// tensor is left as it is, so layouts of a rank alone do not know of slices.
#include "engine/model/tensor_share.hpp"

#include "base/error.hpp"

namespace sluice::model {

const std::int32_t* TensorShare::own_tokens(kernels::Kernels& kernels, const BatchShape& batch,
                                            const std::int32_t* all, std::byte* copy) const {
  if (!passes_keys()) return all + context_rank * batch.seq;
  std::int64_t copied = 0;
  for (const RowRun& run : row_runs(batch)) {
    // As elements of four bytes.
    kernels.copy_columns(all, {run.first, contexts * batch.seq}, copy, {copied, batch.seq}, 1,
                         run.rows, DType::kF32);
    copied += run.rows;
  }
  return reinterpret_cast<const std::int32_t*>(copy);
}

TensorSpec take_slices(TensorSpec whole, const TensorShare& share,
                       std::vector<TensorSlice> slices) {
  if (share.is_whole()) return whole;
  TensorSpec part = std::move(whole);
  part.whole_shape = part.shape;
  part.shape.front() = 0;
  for (const TensorSlice& slice : slices) part.shape.front() += slice.rows;
  if (part.shape.size() > 1) {
    SLUICE_CHECK(part.shape.size() == 2);
    part.shape.back() = slices.front().cols;
  }
  if (!part.matrix_rows.empty()) {
    SLUICE_CHECK(part.matrix_rows.size() == slices.size());
    for (std::size_t i = 0; i < slices.size(); ++i) part.matrix_rows[i] = slices[i].rows;
  }
  part.slices = std::move(slices);
  return part;
}

TensorSpec take_rows(TensorSpec whole, const TensorShare& share,
                     const std::vector<std::int64_t>& runs) {
  const std::int64_t cols = whole.shape.size() > 1 ? whole.shape.back() : 1;
  std::vector<TensorSlice> slices;
  std::int64_t begin = 0;
  for (const std::int64_t run : runs) {
    SLUICE_CHECK_MSG(run % share.ranks == 0, whole.name);
    const std::int64_t rows = share.part(run);
    slices.push_back({begin + share.rank * rows, rows, 0, cols});
    begin += run;
  }
  SLUICE_CHECK_MSG(begin == whole.shape.front(), whole.name);
  return take_slices(std::move(whole), share, std::move(slices));
}

TensorSpec take_heads(TensorSpec whole, const TensorShare& share, const HeadRows& of) {
  const std::int64_t cols = whole.shape.size() > 1 ? whole.shape.back() : 1;
  SLUICE_CHECK_MSG((of.heads + 2 * of.kv_heads) * of.head_dim == whole.shape.front(), whole.name);
  const std::int64_t rows = share.part(of.heads) * of.head_dim;
  const std::int64_t kv_rows = share.kv_part(of.kv_heads) * of.head_dim;
  const std::int64_t keys = (of.heads + share.first_kv_head(of.kv_heads)) * of.head_dim;
  const std::int64_t values = keys + of.kv_heads * of.head_dim;
  TensorSpec part = take_slices(
      std::move(whole), share,
      {{share.rank * rows, rows, 0, cols}, {keys, kv_rows, 0, cols}, {values, kv_rows, 0, cols}});
  if (share.rank % share.sharers(of.kv_heads) != 0) {
    part.copied_elems = static_cast<std::uint64_t>(2 * kv_rows * cols);
  }
  return part;
}

TensorSpec take_columns(TensorSpec whole, const TensorShare& share) {
  SLUICE_CHECK_MSG(whole.shape.size() == 2 && whole.shape.back() % share.ranks == 0, whole.name);
  const std::int64_t cols = share.part(whole.shape.back());
  const TensorSlice slice{0, whole.shape.front(), share.rank * cols, cols};
  return take_slices(std::move(whole), share, {slice});
}

TensorSpec take_tokens(TensorSpec whole, const TensorShare& share) {
  const std::int64_t vocab = whole.shape.front(), cols = whole.shape.back();
  const TensorSlice slice{share.first_token(vocab), share.tokens(vocab), 0, cols};
  TensorSpec part = take_slices(std::move(whole), share, {slice});
  if (part.is_part()) {
    part.reserved_elems = static_cast<std::uint64_t>(share.most_tokens(vocab) * cols);
  }
  return part;
}

}  // namespace sluice::model
