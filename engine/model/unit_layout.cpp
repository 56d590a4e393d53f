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
  for (const TensorBox& box : boxes) {
    const auto cols = static_cast<std::uint64_t>(box.cols);
    const std::uint64_t size = static_cast<std::uint64_t>(box.rows) * cols;
    if (elem < begin + size) {
      const std::uint64_t row = (elem - begin) / cols, col = (elem - begin) % cols;
      const std::uint64_t first = (static_cast<std::uint64_t>(box.row) + row) * whole_cols +
                                  static_cast<std::uint64_t>(box.col) + col;
      // Rows of full width follow each other in the whole, too.
      return {first, cols == whole_cols ? begin + size - elem : cols - col};
    }
    begin += size;
  }
  throw InternalError("an element lies outside its part of a tensor");
}

UnitLayout::UnitLayout(std::vector<TensorSpec> tensors) {
  std::uint64_t cursor = 0;
  for (TensorSpec& spec : tensors) {
    SLUICE_CHECK_MSG(spec.elems() > 0, spec.name);
    parameters_ += spec.whole_elems();
    const std::uint64_t elems = spec.place_elems();
    const std::uint64_t first = place(cursor, elems);
    for (std::uint64_t begin = 0; begin < elems; begin += kLawBlockElems) {
      blocks_.push_back({first + begin, first + std::min(begin + kLawBlockElems, elems)});
    }
    tensors_.push_back({std::move(spec), first});
    cursor = first + elems;
  }
  elems_ = round_up(cursor, kLawBlockElems);
}

std::pair<std::size_t, std::size_t> UnitLayout::norm_block_range(std::uint64_t begin,
                                                                 std::uint64_t end) const {
  const auto starts_before = [](const NormBlock& block, std::uint64_t elem) {
    return block.begin < elem;
  };
  const auto first = std::lower_bound(blocks_.begin(), blocks_.end(), begin, starts_before);
  const auto last = std::lower_bound(blocks_.begin(), blocks_.end(), end, starts_before);
  return {static_cast<std::size_t>(first - blocks_.begin()),
          static_cast<std::size_t>(last - blocks_.begin())};
}

std::vector<std::uint64_t> UnitLayout::norm_blocks_before() const {
  std::vector<std::uint64_t> before;
  std::uint64_t seen = 0;
  for (std::uint64_t elem = 0; elem <= elems_; elem += kLawBlockElems) {
    while (seen < blocks_.size() && blocks_[seen].begin < elem) ++seen;
    before.push_back(seen);
  }
  return before;
}

}  // namespace sluice::model
