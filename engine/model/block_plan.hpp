// The tensors and the saved values of a transformer block (private to the block's layer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {

// Indices into the layout, for both families. Biases are set only if the family has them.
struct BlockTensors {
  std::size_t norm1 = 0, norm1_bias = 0, qkv = 0, qkv_bias = 0, output = 0, output_bias = 0;
  std::size_t norm2 = 0, norm2_bias = 0, up = 0, up_bias = 0, down = 0, down_bias = 0;
};

struct BlockPlan {
  std::vector<TensorSpec> tensors;
  BlockTensors at;
};
// The tensors of block `index` that a rank holds.
BlockPlan plan_block(const ModelShape& shape, std::int64_t index, const TensorShare& share);

// The saved parts, in the order of the saved region.
enum BlockPart : std::uint8_t {
  kQkv,
  kLogSumExp,
  kMlpUp,
  kAttention,
  kResidual,
  kNorm1Mean,
  kNorm1Rstd,
  kNorm2Mean,
  kNorm2Rstd,
  kNormed1,
  kNormed2,
  kMlpHidden,
};
inline constexpr std::size_t kBlockPartCount = 12;

inline schedule::PartMask mask_of(std::initializer_list<BlockPart> parts) {
  schedule::PartMask mask = 0;
  for (const BlockPart part : parts) mask |= schedule::part_bit(part);
  return mask;
}

}  // namespace sluice::model
