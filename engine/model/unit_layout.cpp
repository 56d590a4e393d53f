#include "engine/model/unit_layout.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::model {
namespace {

constexpr std::uint64_t kSmallAlignmentElems = kTensorAlignmentBytes / 2;

std::uint64_t place(std::uint64_t cursor, std::uint64_t elems) {
  if (elems >= kLawBlockElems) return round_up(cursor, kLawBlockElems);
  const std::uint64_t start = round_up(cursor, kSmallAlignmentElems);
  const bool straddles = start / kLawBlockElems != (start + elems - 1) / kLawBlockElems;
  return straddles ? round_up(cursor, kLawBlockElems) : start;
}

}  // namespace

std::uint64_t TensorSpec::elems() const {
  std::uint64_t product = 1;
  for (const std::int64_t dim : shape) product *= static_cast<std::uint64_t>(dim);
  return product;
}

std::uint64_t TensorSpec::whole_elems() const {
  std::uint64_t product = 1;
  for (const std::int64_t dim : file_shape()) product *= static_cast<std::uint64_t>(dim);
  return product;
}

TensorSpec::WholeRun TensorSpec::run_at(std::uint64_t elem) const {
  if (!is_part()) return {elem, elems() - elem};
  const std::uint64_t whole_cols = whole_elems() / static_cast<std::uint64_t>(whole_shape.front());
  std::uint64_t begin = 0;
  for (const TensorSlice& slice : slices) {
    const auto cols = static_cast<std::uint64_t>(slice.cols);
    const std::uint64_t size = static_cast<std::uint64_t>(slice.rows) * cols;
    if (elem < begin + size) {
      const std::uint64_t row = (elem - begin) / cols, col = (elem - begin) % cols;
      const std::uint64_t first = (static_cast<std::uint64_t>(slice.row) + row) * whole_cols +
                                  static_cast<std::uint64_t>(slice.col) + col;
      // Rows of full width follow each other in the whole, too.
      return {first, cols == whole_cols ? begin + size - elem : cols - col};
    }
    begin += size;
  }
  throw InternalError("an element lies outside its part of a tensor");
}

TensorSpec::PartRun TensorSpec::part_run_at(std::uint64_t whole_elem) const {
  SLUICE_CHECK(whole_elem < whole_elems());
  if (!is_part()) return {true, whole_elem, elems() - whole_elem};
  const std::uint64_t whole_cols = whole_elems() / static_cast<std::uint64_t>(whole_shape.front());
  const std::uint64_t row = whole_elem / whole_cols, col = whole_elem % whole_cols;
  std::uint64_t begin = 0;  // of the slice, in the part
  std::uint64_t next = whole_elems();
  for (const TensorSlice& slice : slices) {
    const auto first_row = static_cast<std::uint64_t>(slice.row);
    const auto rows = static_cast<std::uint64_t>(slice.rows);
    const auto first_col = static_cast<std::uint64_t>(slice.col);
    const auto cols = static_cast<std::uint64_t>(slice.cols);
    const bool in_rows = first_row <= row && row < first_row + rows;
    if (in_rows && first_col <= col && col < first_col + cols) {
      const std::uint64_t first = begin + (row - first_row) * cols + (col - first_col);
      return {true, first,
              cols == whole_cols ? begin + rows * cols - first : first_col + cols - col};
    }
    // The slice's first element after the one that is asked for.
    if (row < first_row) next = std::min(next, first_row * whole_cols + first_col);
    if (in_rows && col < first_col) next = std::min(next, row * whole_cols + first_col);
    if (in_rows && col >= first_col && row + 1 < first_row + rows) {
      next = std::min(next, (row + 1) * whole_cols + first_col);
    }
    begin += rows * cols;
  }
  return {false, 0, next - whole_elem};
}

UnitLayout::UnitLayout(std::vector<TensorSpec> tensors) {
  std::uint64_t cursor = 0;
  for (TensorSpec& spec : tensors) {
    SLUICE_CHECK_MSG(spec.elems() > 0, spec.name);
    parameters_ += spec.whole_elems();
    const std::uint64_t elems = spec.place_elems();
    const std::uint64_t first = place(cursor, elems);
    first_blocks_.push_back(first_blocks_.back() + ceil_div(elems, kLawBlockElems));
    tensors_.push_back({std::move(spec), first});
    cursor = first + elems;
  }
  elems_ = round_up(cursor, kLawBlockElems);
}

NormBlock UnitLayout::norm_block(std::size_t index) const {
  const auto after = std::upper_bound(first_blocks_.begin(), first_blocks_.end(), index);
  const auto tensor = static_cast<std::size_t>(after - first_blocks_.begin()) - 1;
  SLUICE_CHECK(tensor < tensors_.size());
  const PlacedTensor& of = tensors_[tensor];
  const std::uint64_t begin = (index - first_blocks_[tensor]) * kLawBlockElems;
  const std::uint64_t own = of.spec.own_elems();
  return {of.first_elem + std::min(begin, own),
          of.first_elem + std::min(begin + kLawBlockElems, own)};
}

std::size_t UnitLayout::blocks_before(std::uint64_t elem) const {
  const auto after = std::lower_bound(
      tensors_.begin(), tensors_.end(), elem,
      [](const PlacedTensor& tensor, std::uint64_t at) { return tensor.first_elem < at; });
  if (after == tensors_.begin()) return 0;
  const auto tensor = static_cast<std::size_t>(after - tensors_.begin()) - 1;
  const std::uint64_t blocks = ceil_div(elem - tensors_[tensor].first_elem, kLawBlockElems);
  return std::min<std::size_t>(first_blocks_[tensor] + blocks, first_blocks_[tensor + 1]);
}

std::pair<std::size_t, std::size_t> UnitLayout::norm_block_range(std::uint64_t begin,
                                                                 std::uint64_t end) const {
  return {blocks_before(begin), blocks_before(end)};
}

// A large tensor begins at a multiple of 4,096, and no other begins before its last block. So the
// counts between are one run.
BlockCounts UnitLayout::norm_blocks_before() const {
  BlockCounts before;
  const auto count_to = [&](std::uint64_t last) {
    for (std::uint64_t at = before.size(); at <= last; ++at) {
      before.push_back(blocks_before(at * kLawBlockElems));
    }
  };
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const std::uint64_t first = tensors_[tensor].first_elem;
    const std::size_t blocks = first_blocks_[tensor + 1] - first_blocks_[tensor];
    if (tensors_[tensor].spec.elems() < kLawBlockElems) continue;
    count_to(first / kLawBlockElems);
    before.append(first_blocks_[tensor] + 1, blocks - 1);
  }
  count_to(elems_ / kLawBlockElems);
  return before;
}

}  // namespace sluice::model
