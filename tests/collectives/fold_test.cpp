// The tree: its shape by definition, its order of additions, and the groups that ranks add.
#include "collectives/fold.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/schedule/rank_view.hpp"

namespace sluice::collectives {
namespace {

// By definition: splits at the largest power of two below n.
std::string tree(std::uint64_t first, std::uint64_t count) {
  if (count == 1) return std::to_string(first);
  std::uint64_t left = 1;
  while (left * 2 < count) left *= 2;
  return "(" + tree(first, left) + "+" + tree(first + left, count - left) + ")";
}

// As parts come in order. most: the largest number of sums that were held.
std::string fold_in_turn(const std::vector<std::string>& parts, std::size_t& most) {
  std::vector<std::string> sums;
  most = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sums.push_back(parts[i]);
    most = std::max(most, sums.size());
    for (int left = count_additions(i, parts.size()); left > 0; --left) {
      const std::string newest = sums.back();
      sums.pop_back();
      sums.back() = "(" + sums.back() + "+" + newest + ")";
    }
  }
  EXPECT_EQ(sums.size(), 1u);
  return sums.front();
}

TEST(FoldTree, PartsInTurnFormTheTreeOfTheDefinition) {
  for (std::uint64_t count = 1; count <= 70; ++count) {
    std::vector<std::string> parts;
    for (std::uint64_t i = 0; i < count; ++i) parts.push_back(std::to_string(i));
    std::size_t most = 0;
    EXPECT_EQ(fold_in_turn(parts, most), tree(0, count));
    EXPECT_EQ(most, static_cast<std::size_t>(count_partial_sums(count)));
  }
}

// Ranks add their groups alone; the tree over the ranks' sums is the tree over all groups.
TEST(FoldTree, GroupsOfRanksAreSubtrees) {
  int pairs = 0;
  const auto can_fold = [](std::uint64_t groups, std::uint64_t ranks) {
    return schedule::can_fold(static_cast<std::int64_t>(groups), static_cast<std::int64_t>(ranks));
  };
  for (std::uint64_t groups = 2; groups <= 48; ++groups) {
    for (std::uint64_t ranks = 1; ranks <= groups; ++ranks) {
      if (groups % ranks != 0) {
        EXPECT_FALSE(can_fold(groups, ranks));
        continue;
      }
      std::vector<std::string> sums;
      std::size_t most = 0;
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        std::vector<std::string> parts;
        for (std::uint64_t i = 0; i < groups / ranks; ++i)
          parts.push_back(std::to_string(groups / ranks * rank + i));
        sums.push_back(fold_in_turn(parts, most));
      }
      EXPECT_EQ(fold_in_turn(sums, most) == tree(0, groups), can_fold(groups, ranks))
          << groups << " groups, " << ranks << " ranks";
      pairs += can_fold(groups, ranks) ? 1 : 0;
    }
  }
  EXPECT_GT(pairs, 100);
  EXPECT_TRUE(can_fold(1, 7));
}

TEST(FoldTree, AddsInFp32AndRoundsOnce) {
  const std::vector<bf16> big{bf16_from_float(256.0F)}, small{bf16_from_float(1.0F)};
  // 256 + 1 is a tie in bf16, which would round to even at each step: 256.
  const void* const parts[] = {big.data(), small.data(), small.data(), small.data()};
  bf16 sum;
  fold_tree(parts, DType::kBF16, &sum, DType::kBF16, 1);
  EXPECT_EQ(to_float(sum), 260.0F);  // of 259, to the nearest multiple of 2, ties to even
  float wide = 0;
  fold_tree(parts, DType::kBF16, &wide, DType::kF32, 1);
  EXPECT_EQ(wide, 259.0F);
}

TEST(FoldTree, RefusesTypesThatHaveNoSum) {
  const std::uint8_t byte = 1;
  std::uint8_t sum = 0;
  const void* const parts[] = {&byte, &byte};
  EXPECT_THROW(fold_tree(parts, DType::kU8, &sum, DType::kU8, 1), InternalError);
  const float number = 1;
  const void* const floats[] = {&number};
  std::int32_t whole = 0;
  EXPECT_THROW(fold_tree(floats, DType::kF32, &whole, DType::kI32, 1), InternalError);
}

}  // namespace
}  // namespace sluice::collectives
