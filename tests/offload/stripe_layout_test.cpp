#include "offload/stripe_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace sluice::testing {
namespace {

constexpr std::uint64_t kStripe = offload::StripeLayout::kStripeBytes;

// Every stripe of a path follows the one before in its file, with any shares.
TEST(StripeLayout, FillsEachFileWithoutHoleOrOverlap) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::uint32_t> shares(1 + random() % 5);
    for (std::uint32_t& share : shares) share = 1 + static_cast<std::uint32_t>(random() % 7);
    const offload::StripeLayout layout(shares);
    const std::uint64_t bytes = (random() % 60) * kStripe + random() % kStripe;
    std::vector<std::uint64_t> filled(shares.size(), 0);
    for (std::uint64_t offset = 0; offset < bytes; offset += kStripe) {
      const std::size_t path = layout.path_of(offset);
      const std::uint64_t within = std::min(kStripe, bytes - offset) - 1;
      ASSERT_EQ(layout.offset_in_file(offset), filled[path]);
      ASSERT_EQ(layout.path_of(offset + within), path);
      ASSERT_EQ(layout.offset_in_file(offset + within), filled[path] + within);
      filled[path] += within + 1;
    }
    for (std::size_t path = 0; path < shares.size(); ++path) {
      ASSERT_EQ(layout.bytes_on(path, bytes), filled[path]);
    }
  }
}

TEST(StripeLayout, GivesEachPathItsShareOfEveryRound) {
  const offload::StripeLayout layout({5, 2, 1});
  std::vector<std::uint32_t> found(3, 0);
  for (std::uint64_t stripe = 800; stripe < 808; ++stripe)
    ++found[layout.path_of(stripe * kStripe)];
  EXPECT_EQ(found, layout.shares());
}

// Even striping stays as it was before there were shares: data of those runs are read so.
TEST(StripeLayout, EvenOnesTakeTurns) {
  const offload::StripeLayout layout = offload::StripeLayout::even(3);
  for (std::uint64_t stripe = 0; stripe < 20; ++stripe) {
    EXPECT_EQ(layout.path_of(stripe * kStripe + 17), stripe % 3);
    EXPECT_EQ(layout.offset_in_file(stripe * kStripe + 17), stripe / 3 * kStripe + 17);
  }
}

TEST(StripeLayout, SharesMustBeAboveZeroAndBounded) {
  EXPECT_TRUE(offload::StripeLayout::valid({1}));
  EXPECT_FALSE(offload::StripeLayout::valid({}));
  EXPECT_FALSE(offload::StripeLayout::valid({1, 0}));
  EXPECT_TRUE(offload::StripeLayout::valid({offload::StripeLayout::kMostStripes - 1, 1}));
  EXPECT_FALSE(offload::StripeLayout::valid({offload::StripeLayout::kMostStripes, 1}));
  EXPECT_FALSE(offload::StripeLayout::valid({~0u, ~0u}));
}

TEST(SharesBySpeed, AreTheShortestRoundThatFits) {
  using Shares = std::vector<std::uint32_t>;
  EXPECT_EQ(offload::shares_by_speed({7}), (Shares{1}));
  EXPECT_EQ(offload::shares_by_speed({2.5, 2.5}), (Shares{1, 1}));
  EXPECT_EQ(offload::shares_by_speed({3e9, 1e9}), (Shares{3, 1}));
  EXPECT_EQ(offload::shares_by_speed({1e9, 2e9, 3e9}), (Shares{1, 2, 3}));
  // None is left out, however slow: 15 to 1 is all that a round of 16 can say.
  EXPECT_EQ(offload::shares_by_speed({1e9, 1}), (Shares{15, 1}));
}

// A transfer over all paths ends when the slowest has ended.
TEST(SharesBySpeed, AreNeverSlowerThanEvenOnesAndNearTheBest) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> speeds(2 + random() % 3);
    for (double& speed : speeds) speed = 1 + static_cast<double>(random() % 4000) / 1000;
    const auto shares = offload::shares_by_speed(speeds);
    const double total = std::accumulate(shares.begin(), shares.end(), 0u);
    double time = 0;
    double even = 0;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
      time = std::max(time, shares[i] / total / speeds[i]);
      even = std::max(even, 1 / static_cast<double>(speeds.size()) / speeds[i]);
    }
    const double best = 1 / std::accumulate(speeds.begin(), speeds.end(), 0.0);
    ASSERT_LE(time, even * 1.02);
    ASSERT_LE(time, best * 1.15);
  }
}

TEST(SharesByRatio, AreTheRatioItself) {
  using Shares = std::vector<std::uint32_t>;
  EXPECT_EQ(offload::shares_by_ratio({7}), (Shares{1}));
  EXPECT_EQ(offload::shares_by_ratio({100, 1}), (Shares{100, 1}));
  EXPECT_EQ(offload::shares_by_ratio({6, 2, 4}), (Shares{3, 1, 2}));
  EXPECT_EQ(offload::shares_by_ratio({3e9, 1.5e9}), (Shares{2, 1}));
  EXPECT_EQ(offload::shares_by_ratio({0.3, 0.1}), (Shares{3, 1}));
  EXPECT_EQ(offload::shares_by_ratio({1, 4095}), (Shares{1, 4095}));
  EXPECT_FALSE(offload::is_possible_ratio({1, 4096}));
}

// Whatever is asked for, each path has its part within 2% where some are not the least possible.
TEST(SharesByRatio, ComeNearWhereNoRoundHoldsTheRatio) {
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> ratio(2 + random() % 3);
    for (double& part : ratio) part = 1 + static_cast<double>(random() % 1'000'003) / 10'007;
    const auto shares = offload::shares_by_ratio(ratio);
    ASSERT_TRUE(offload::StripeLayout::valid(shares));
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    const double asked = std::accumulate(ratio.begin(), ratio.end(), 0.0);
    for (std::size_t i = 0; i < ratio.size(); ++i) {
      ASSERT_NEAR(shares[i] / total / (ratio[i] / asked), 1, 0.02);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
