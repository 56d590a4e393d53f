#include "kernels/block8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.hpp"

namespace sluice::kernels {
namespace {

constexpr Block8Map kMaps[] = {Block8Map::kMoment1, Block8Map::kMoment2};

std::vector<float> code_values(Block8Map map) {
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) {
    if (map == Block8Map::kMoment1 && code == 128) continue;  // -128 is never written
    values.push_back(block8_value(map, static_cast<std::uint8_t>(code)));
  }
  return values;
}

TEST(Block8, CodesRiseFromTheLeastNumberToOne) {
  const auto value = [](Block8Map map, int code) {
    return block8_value(map, static_cast<std::uint8_t>(code));
  };
  for (const auto& [map, last, least] :
       {std::tuple{Block8Map::kMoment1, 127, 0x1p-18f}, {Block8Map::kMoment2, 255, 0x1p-28f}}) {
    EXPECT_EQ(value(map, 0), 0.0f);
    EXPECT_EQ(value(map, 1), least);
    EXPECT_EQ(value(map, last), 1.0f);
    for (int code = 1; code < last; ++code) EXPECT_LT(value(map, code), value(map, code + 1));
    // The paper's property: steps are at most 1.5% of the largest number.
    for (int code = 1; code < last; ++code) {
      EXPECT_LE(value(map, code + 1) - value(map, code), 0.015f);
    }
  }
  for (int code = 1; code < 128; ++code) {
    EXPECT_EQ(value(Block8Map::kMoment1, 256 - code), -value(Block8Map::kMoment1, code));
  }
}

// Against a search through all codes in fp64. x * (1 / scale) has two roundings, so a number within
// 2^-22 of the middle between two codes may go to either.
TEST(Block8, TakesTheNearestCode) {
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> exponent(-40.0f, 0.0f);
  for (const Block8Map map : kMaps) {
    const std::vector<float> all = code_values(map);
    for (int trial = 0; trial < 60; ++trial) {
      const float scale = std::exp2(exponent(engine));
      std::vector<float> x(kBlock8Elems), back(kBlock8Elems);
      for (float& number : x)
        number = scale * std::exp2(exponent(engine) / (trial % 3 == 0 ? 40 : 1));
      if (map == Block8Map::kMoment1) {
        for (std::size_t i = 0; i < x.size(); i += 2) x[i] = -x[i];
      }
      std::vector<std::uint8_t> codes(kBlock8Elems);
      const float got = block8_encode(map, x.data(), codes.data());
      block8_decode(map, got, codes.data(), back.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double y = static_cast<double>(x[i]) / static_cast<double>(got);
        double best = std::numeric_limits<double>::infinity();
        for (const float value : all) {
          if (map == Block8Map::kMoment2 && value == 0) continue;  // zero is for zero alone
          best = std::min(best, std::abs(static_cast<double>(value) - y));
        }
        const double error = std::abs(static_cast<double>(block8_value(map, codes[i])) - y);
        ASSERT_LE(error, best + std::abs(y) * 0x1p-22) << x[i] << " of " << got;
        ASSERT_EQ(back[i], block8_value(map, codes[i]) * got);
      }
    }
  }
}

TEST(Block8, KeepsTheLargestNumberAndZerosExactly) {
  for (const Block8Map map : kMaps) {
    std::vector<float> x(kBlock8Elems), back(kBlock8Elems);
    x[5] = 0.3f;
    x[77] = 1.2345678e-3f;
    std::vector<std::uint8_t> codes(kBlock8Elems);
    const float scale = block8_encode(map, x.data(), codes.data());
    block8_decode(map, scale, codes.data(), back.data());
    EXPECT_EQ(back[5], 0.3f);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(back[i] == 0, x[i] == 0) << i;
    }
  }
}

TEST(Block8, NoSecondMomentVanishes) {
  std::vector<float> x(kBlock8Elems), back(kBlock8Elems);
  const float tiny[] = {std::numeric_limits<float>::denorm_min(), 1e-38f, 1e-30f, 1e-20f, 1e-10f};
  for (const float largest : {3e38f, 1.0f, 1e-20f, 1e-38f, 1e-44f}) {
    x[0] = largest;
    for (std::size_t i = 1; i < x.size(); ++i) x[i] = std::min(largest, tiny[i % 5]);
    std::vector<std::uint8_t> codes(kBlock8Elems);
    const float scale = block8_encode(Block8Map::kMoment2, x.data(), codes.data());
    block8_decode(Block8Map::kMoment2, scale, codes.data(), back.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_GT(codes[i], 0);
      EXPECT_GT(back[i], 0.0f);
    }
  }
}

TEST(Block8, AnInfinityOrNaNPoisonsItsBlockButZeros) {
  for (const Block8Map map : kMaps) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> x(kBlock8Elems, 1.0f), back(kBlock8Elems);
      x[3] = bad;
      x[4] = 0;
      std::vector<std::uint8_t> codes(kBlock8Elems);
      const float scale = block8_encode(map, x.data(), codes.data());
      block8_decode(map, scale, codes.data(), back.data());
      for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(back[i]), i != 4);
      EXPECT_EQ(back[4], 0.0f);
    }
  }
}

TEST(Block8, StatesAreScalesThenCodesInGroups) {
  const std::uint64_t elems = 3 * kBlock8GroupElems;
  std::vector<std::uint8_t> state(bytes_of(DType::kBlock8, elems));
  std::vector<float> x(elems), back(elems);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i / kBlock8Elems + 1);
  block8_encode_state(Block8Map::kMoment2, x.data(), elems, state.data());
  block8_decode_state(Block8Map::kMoment2, state.data(), elems, back.data());
  EXPECT_EQ(x, back);
  const auto* const scales = reinterpret_cast<const float*>(state.data() + 2 * kBlock8GroupBytes);
  EXPECT_EQ(scales[31], 96.0f);
  EXPECT_EQ(state[2 * kBlock8GroupBytes + 128], 255);
  std::fill(state.begin(), state.end(), std::uint8_t{0});
  block8_decode_state(Block8Map::kMoment1, state.data(), elems, back.data());
  EXPECT_EQ(back, std::vector<float>(elems));
}

}  // namespace
}  // namespace sluice::kernels
