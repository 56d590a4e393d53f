#include "kernels/stochastic_rounding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "kernels/split_master.hpp"

namespace sluice::kernels {
namespace {

TEST(StochasticRounding, IsRightInTheMean) {
  for (const float value : {1.0f + 0x1p-9f, -3.14159265f, 1.0f + 0x1p-14f, 1e-39f}) {
    double sum = 0;
    constexpr int kDraws = 1 << 16;
    for (int noise = 0; noise < kDraws; ++noise) {
      sum +=
          static_cast<double>(to_float(bf16_stochastic(value, static_cast<std::uint16_t>(noise))));
    }
    // All noises once: exact, as long as the value's lower half has no bits below the noise's.
    EXPECT_EQ(sum / kDraws, static_cast<double>(value));
  }
}

TEST(StochasticRounding, NoiseIsUniformAndIndependentWithinAnElement) {
  double sum1 = 0, sum2 = 0, products = 0;
  std::set<std::uint64_t> seen;
  constexpr int kKeys = 1 << 16;
  for (int i = 0; i < kKeys; ++i) {
    const auto key = static_cast<std::uint64_t>(i) + (std::uint64_t{1} << 36);
    const double a = rounding_noise(11, 3, key, 1) / 65536.0 - 0.5;
    const double b = rounding_noise(11, 3, key, 2) / 65536.0 - 0.5;
    sum1 += a;
    sum2 += b;
    products += a * b;
    if (i % 4 == 0 && i < 8192) {
      seen.insert((std::uint64_t{rounding_noise(11, 3, key, 1)} << 48) |
                  (std::uint64_t{rounding_noise(11, 3, key, 2)} << 32) |
                  (std::uint64_t{rounding_noise(11, 3, key + 2, 1)} << 16) |
                  rounding_noise(11, 3, key + 2, 2));
    }
  }
  // Five standard deviations: a uniform number's is sqrt(1/12), a product's 1/12.
  EXPECT_LT(std::abs(sum1), 5 * std::sqrt(kKeys / 12.0));
  EXPECT_LT(std::abs(sum2), 5 * std::sqrt(kKeys / 12.0));
  EXPECT_LT(std::abs(products), 5 * std::sqrt(kKeys) / 12.0);
  EXPECT_EQ(seen.size(), 2048u);  // no 64 bits are drawn twice
  EXPECT_NE(rounding_noise(11, 3, 5, 1), rounding_noise(11, 4, 5, 1));
  EXPECT_NE(rounding_noise(11, 3, 5, 1), rounding_noise(12, 3, 5, 1));
}

// A word serves two neighbours; their moments take its halves crosswise. Each half rounds one first
// and one second moment, and no element's two moments share one.
TEST(StochasticRounding, NeighboursTakeTheHalvesOfAWordCrosswise) {
  for (std::uint64_t key = 0; key < 512; key += 2) {
    const std::uint16_t lower = rounding_noise(5, 9, key, 1);
    const std::uint16_t upper = rounding_noise(5, 9, key, 2);
    EXPECT_EQ(rounding_noise(5, 9, key + 1, 1), upper);
    EXPECT_EQ(rounding_noise(5, 9, key + 1, 2), lower);
    const PhiloxBlock block = philox4x32(5, key / 128 * 16 + key % 32 / 2, 9, 7);
    EXPECT_EQ(block[key % 128 / 32], std::uint32_t{upper} << 16 | lower);
  }
}

TEST(StochasticRounding, NoiseMakesNeitherInfinityNorNumbersOfNaN) {
  const float largest = std::bit_cast<float>(0x7f7f0000u);  // of bf16
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int noise : {0, 1, 0x7fff, 0x8000, 0xffff}) {
    const auto draw = [&](float x) {
      return to_float(bf16_stochastic(x, static_cast<std::uint16_t>(noise)));
    };
    EXPECT_EQ(draw(largest), largest);
    EXPECT_EQ(draw(std::bit_cast<float>(0x7f7f7fffu)), largest);
    EXPECT_EQ(draw(std::numeric_limits<float>::max()), infinity);  // the nearest is
    EXPECT_EQ(draw(-infinity), -infinity);
    for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu}) {
      EXPECT_TRUE(std::isnan(draw(std::bit_cast<float>(nan))));
    }
    EXPECT_EQ(draw(0.0f), 0.0f);
    EXPECT_EQ(draw(-1.5f), -1.5f);
  }
}

TEST(SplitMaster, LosesNothing) {
  std::uint32_t bits = 1;
  for (int i = 0; i < 2000000; ++i) {
    bits = bits * 2654435761u + 12345u;
    const float value = std::bit_cast<float>(bits);
    const float back = join_master(split_master(value));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(back));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back), bits);
    }
  }
  for (const std::uint32_t edge : {0u, 0x80000000u, 0x7f7fffffu, 0x7f7f8000u, 0xff7fffffu,
                                   0x7f800000u, 0x00008000u, 0x00007fffu, 0x3f808000u}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(join_master(split_master(std::bit_cast<float>(edge)))),
              edge);
  }
}

}  // namespace
}  // namespace sluice::kernels
