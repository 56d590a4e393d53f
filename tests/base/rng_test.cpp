#include "base/rng.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/error.hpp"

namespace sluice {
namespace {

// Known answers: Random123 1.14, tests/kat_vectors, "philox4x32 10" (counter, key, result).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(0xffffffffffffffff, 0xffffffffffffffff, 0xffffffffffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Words of pi; the low word of each pair comes first.
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRng, IsAFunctionOfSeedStreamAndIndex) {
  const CounterRng rng(5, stream_of("init/h.0.weight"));
  const CounterRng same(5, stream_of("init/h.0.weight"));
  std::vector<float> forward;
  for (std::uint64_t i = 0; i < 100; ++i) forward.push_back(rng.normal(i));
  for (std::uint64_t i = 100; i-- > 0;) EXPECT_EQ(same.normal(i), forward[i]);
  EXPECT_NE(CounterRng(6, stream_of("init/h.0.weight")).bits(0), rng.bits(0));
  EXPECT_NE(CounterRng(5, stream_of("init/h.1.weight")).bits(0), rng.bits(0));
  std::set<std::uint64_t> values;
  for (std::uint64_t i = 0; i < 10'000; ++i) values.insert(rng.bits(i));
  EXPECT_EQ(values.size(), 10'000u);
  // Indices past 32 bits are other indices.
  EXPECT_NE(rng.bits(1), rng.bits(1 + (std::uint64_t{1} << 32)));
}

TEST(CounterRng, BelowIsUniform) {
  const CounterRng rng(11, stream_of("below"));
  constexpr std::uint64_t kBound = 7;
  constexpr int kDraws = 70'000;
  std::vector<int> counts(kBound, 0);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const std::uint64_t value = rng.below(i, kBound);
    ASSERT_LT(value, kBound);
    ++counts[value];
  }
  double chi_square = 0;
  for (const int count : counts) {
    const double off = count - kDraws / static_cast<double>(kBound);
    chi_square += off * off / (kDraws / static_cast<double>(kBound));
  }
  EXPECT_LT(chi_square, 22.5);  // 6 degrees of freedom: passed with probability 0.999
  EXPECT_EQ(rng.below(3, 1), 0u);
  EXPECT_THROW(rng.below(0, 0), InternalError);
  for (std::uint64_t i = 0; i < 100; ++i)
    ASSERT_LT(rng.below(i, ~std::uint64_t{0}), ~std::uint64_t{0});
}

TEST(CounterRng, UniformFillsTheUnitInterval) {
  const CounterRng rng(12, stream_of("uniform"));
  constexpr int kDraws = 100'000;
  double sum = 0;
  double square_sum = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double value = rng.uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    square_sum += value * value;
  }
  // Four standard errors: of the mean 1/sqrt(12 n), of the second moment sqrt(4/45 / n).
  EXPECT_NEAR(sum / kDraws, 0.5, 4 / std::sqrt(12.0 * kDraws));
  EXPECT_NEAR(square_sum / kDraws, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(CounterRng, NormalHasTheMomentsAndTailsOfANormal) {
  const CounterRng rng(13, stream_of("normal"));
  constexpr int kDraws = 200'000;
  double moments[5] = {};
  int within_one = 0;
  int past_three = 0;
  double neighbour_product = 0;
  double previous = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double value = rng.normal(i);
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_LT(std::fabs(value), 8.6);
    for (int power = 1; power <= 4; ++power) moments[power] += std::pow(value, power) / kDraws;
    within_one += std::fabs(value) < 1 ? 1 : 0;
    past_three += std::fabs(value) > 3 ? 1 : 0;
    neighbour_product += previous * value / kDraws;
    previous = value;
  }
  const double unit = 4 / std::sqrt(static_cast<double>(kDraws));  // four standard errors
  EXPECT_NEAR(moments[1], 0, unit);
  EXPECT_NEAR(moments[2], 1, unit * std::sqrt(2.0));
  EXPECT_NEAR(moments[3], 0, unit * std::sqrt(15.0));
  EXPECT_NEAR(moments[4], 3, unit * std::sqrt(96.0));
  EXPECT_NEAR(within_one / static_cast<double>(kDraws), 0.682689, unit * 0.466);
  EXPECT_NEAR(past_three / static_cast<double>(kDraws), 0.0026998, unit * 0.052);
  EXPECT_NEAR(neighbour_product, 0, unit);
}

}  // namespace
}  // namespace sluice
