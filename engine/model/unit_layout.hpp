// A unit's flat element space: the position of each tensor.
//
// Rules. A tensor of 4,096 elements or more starts at a multiple of 4,096; smaller ones start at a
// multiple of 128 (256 bytes in 16 bits) and never straddle a multiple of 4,096. So every multiple
// of 4,096 is a boundary of norm blocks, whatever the tensors are, and chunks and shards may break
// there (law 2). Gaps are zero and stay zero: no segment covers them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/block_counts.hpp"
#include "base/dtype.hpp"

namespace sluice::model {

enum class Init : std::uint8_t { kNormal, kZeros, kOnes };

// A slice of a whole tensor: rows [row, row + rows) and columns [col, col + cols). The first
// dimension counts rows, all others together count columns.
struct TensorSlice {
  std::int64_t row = 0, rows = 0, col = 0, cols = 0;
  bool operator==(const TensorSlice&) const = default;
};

struct TensorSpec {
  std::string name;  // "blocks.3.attention.qkv.weight"
  std::vector<std::int64_t> shape;
  Init init = Init::kNormal;
  float init_std = 0.02f;
  bool decay = false;  // takes part in weight decay (matrices and embeddings do, vectors do not)
  bool hidden_matrix = false;  // a matrix between hidden activations (not embedding, not head)
  // Rows of each logical matrix, where the tensor holds several one above the other: q, k and v, or
  // gate and up. They sum to the tensor's rows. Empty: the tensor is one matrix.
  std::vector<std::int64_t> matrix_rows = {};
  // A part of a tensor, as a tensor-parallel rank holds it: the shape of the whole, and the slices
  // that lie in the part, one above the other and of equal width. Names, initial values and files
  // are those of the whole. Empty: this is a whole tensor.
  std::vector<std::int64_t> whole_shape = {};
  std::vector<TensorSlice> slices = {};
  // Elements that the unit keeps for it, so that parts of unequal size lie alike on all ranks.
  // Those after the part are a gap. 0: as many as it has.
  std::uint64_t reserved_elems = 0;
  // The last elements that are copies of another rank's part. That rank counts them in the norm and
  // brings them to files.
  std::uint64_t copied_elems = 0;

  std::uint64_t elems() const;
  std::uint64_t own_elems() const { return elems() - copied_elems; }
  bool is_part() const { return !slices.empty(); }
  // The shape of the tensor that it is a part of, or its own.
  const std::vector<std::int64_t>& file_shape() const { return is_part() ? whole_shape : shape; }
  std::uint64_t whole_elems() const;
  std::uint64_t place_elems() const { return std::max(elems(), reserved_elems); }
  // The position in the whole tensor of an element of the part, and the number of elements from it
  // on that follow each other in both.
  struct WholeRun {
    std::uint64_t first = 0;
    std::uint64_t elems = 0;
  };
  WholeRun run_at(std::uint64_t elem) const;
  // The inverse: whether the part has an element of the whole tensor, its position in the part, and
  // the number of elements of the whole from it on that follow each other in both. If the part
  // lacks it: how many from it on the part lacks, too.
  struct PartRun {
    bool held = false;
    std::uint64_t first = 0;
    std::uint64_t elems = 0;
  };
  PartRun part_run_at(std::uint64_t whole_elem) const;
};

struct PlacedTensor {
  TensorSpec spec;
  std::uint64_t first_elem = 0;
};

// Elements [begin, end) of the unit; at most kLawBlockElems of one tensor. A block without elements
// of the rank's own is empty.
struct NormBlock {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class UnitLayout {
 public:
  UnitLayout() = default;
  explicit UnitLayout(std::vector<TensorSpec> tensors);

  const std::vector<PlacedTensor>& tensors() const { return tensors_; }
  // A multiple of kLawBlockElems.
  std::uint64_t elems() const { return elems_; }
  // Elements without the gaps, of whole tensors.
  std::uint64_t parameter_count() const { return parameters_; }
  // Norm blocks are numbered in element order.
  std::size_t norm_block_count() const { return first_blocks_.back(); }
  NormBlock norm_block(std::size_t index) const;
  // Item i: the norm blocks that begin before element 4,096 * i; elems() / 4,096 + 1 items.
  BlockCounts norm_blocks_before() const;
  // Indices [first, last) of the norm blocks inside elements [begin, end); both multiples of
  // kLawBlockElems or elems().
  std::pair<std::size_t, std::size_t> norm_block_range(std::uint64_t begin,
                                                       std::uint64_t end) const;

 private:
  // The norm blocks that begin before an element.
  std::size_t blocks_before(std::uint64_t elem) const;

  std::vector<PlacedTensor> tensors_;
  std::vector<std::size_t> first_blocks_{0};  // of each tensor, and the number of all
  std::uint64_t elems_ = 0;
  std::uint64_t parameters_ = 0;
};

}  // namespace sluice::model
