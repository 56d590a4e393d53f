// Norm blocks are computed from the places of tensors. The reference lists each of them.
#include "engine/model/unit_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "tests/support/draws.hpp"

namespace sluice::model {
namespace {

using testing::Draws;

UnitLayout random_layout(std::uint64_t seed) {
  Draws draw(seed, "test/unit-layout");
  std::vector<TensorSpec> tensors;
  const std::uint64_t count = 1 + draw.below(8);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t most = draw.below(2) == 0 ? 300 : 5 * kLawBlockElems;
    const std::uint64_t elems =
        draw.below(4) == 0 ? (1 + draw.below(3)) * kLawBlockElems : 1 + draw.below(most);
    tensors.push_back({"tensor" + std::to_string(i), {static_cast<std::int64_t>(elems)}});
  }
  return UnitLayout(std::move(tensors));
}

std::vector<NormBlock> listed_blocks(const UnitLayout& layout) {
  std::vector<NormBlock> blocks;
  for (const PlacedTensor& tensor : layout.tensors()) {
    const std::uint64_t end = tensor.first_elem + tensor.spec.elems();
    for (std::uint64_t begin = tensor.first_elem; begin < end; begin += kLawBlockElems) {
      blocks.push_back({begin, std::min(begin + kLawBlockElems, end)});
    }
  }
  return blocks;
}

TEST(UnitLayout, NormBlocksAreThoseOfItsTensorsInOrder) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const UnitLayout layout = random_layout(seed);
    const std::vector<NormBlock> blocks = listed_blocks(layout);
    ASSERT_EQ(layout.norm_block_count(), blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(layout.norm_block(i).begin, blocks[i].begin);
      EXPECT_EQ(layout.norm_block(i).end, blocks[i].end);
    }
    const BlockCounts before = layout.norm_blocks_before();
    ASSERT_EQ(before.size(), layout.elems() / kLawBlockElems + 1);
    for (std::uint64_t at = 0; at < before.size(); ++at) {
      const std::uint64_t elem = at * kLawBlockElems;
      const auto count = static_cast<std::size_t>(
          std::count_if(blocks.begin(), blocks.end(),
                        [&](const NormBlock& block) { return block.begin < elem; }));
      ASSERT_EQ(before[at], count) << "seed " << seed << ", index " << at;
      EXPECT_EQ(layout.norm_block_range(0, elem).second, count);
    }
    EXPECT_EQ(before.back(), blocks.size());
  }
}

}  // namespace
}  // namespace sluice::model
