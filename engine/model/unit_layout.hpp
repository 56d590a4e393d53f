// A unit's flat element space: the position of each tensor.
//
// Rules. A tensor of 4,096 elements or more starts at a multiple of 4,096; smaller ones start at a
// multiple of 128 (256 bytes in 16 bits) and never straddle a multiple of 4,096. So every multiple
// of 4,096 is a boundary of norm blocks, whatever the tensors are, and chunks and shards may break
// there (law 2). Gaps are zero and stay zero: no segment covers them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace sluice::model {

enum class Init : std::uint8_t { kNormal, kZeros, kOnes };

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

  std::uint64_t elems() const;
};

struct PlacedTensor {
  TensorSpec spec;
  std::uint64_t first_elem = 0;
};

// Elements [begin, end) of the unit; at most kLawBlockElems of one tensor.
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
  // Elements without the gaps.
  std::uint64_t parameter_count() const { return parameters_; }
  // All norm blocks in element order.
  const std::vector<NormBlock>& norm_blocks() const { return blocks_; }
  // Item i: the norm blocks that begin before element 4,096 * i; elems() / 4,096 + 1 items.
  std::vector<std::uint64_t> norm_blocks_before() const;
  // Indices [first, last) of the norm blocks inside elements [begin, end); both multiples of
  // kLawBlockElems or elems().
  std::pair<std::size_t, std::size_t> norm_block_range(std::uint64_t begin,
                                                       std::uint64_t end) const;

 private:
  std::vector<PlacedTensor> tensors_;
  std::vector<NormBlock> blocks_;
  std::uint64_t elems_ = 0;
  std::uint64_t parameters_ = 0;
};

}  // namespace sluice::model
