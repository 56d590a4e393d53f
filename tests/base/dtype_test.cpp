#include "base/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.hpp"

namespace sluice {
namespace {

enum class Ties { kEven, kAway };

// The magnitudes of a format's numbers by their bits, in double, where all differences of
// neighbours are exact. That of infinity is the number after the largest finite one: from half-way
// on, IEEE rounds to infinity.
struct Format {
  std::uint32_t infinity;
  double (*magnitude)(std::uint32_t bits);
};

double bf16_magnitude(std::uint32_t bits) {
  if (bits == 0x7f80u) return std::ldexp(1.0, 128);
  return static_cast<double>(std::bit_cast<float>(bits << 16));
}
double f16_magnitude(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10);
  const double mantissa = static_cast<double>(bits & 0x3ffu);
  return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
}
constexpr Format kBf16{0x7f80u, &bf16_magnitude};
constexpr Format kF16{0x7c00u, &f16_magnitude};

// Converts by search.
std::uint16_t round_by_double(const Format& format, float value, Ties ties) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000u : 0u);
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint32_t below = 0, above = format.infinity;
  if (magnitude >= format.magnitude(above)) return sign | static_cast<std::uint16_t>(above);
  while (above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (format.magnitude(middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - format.magnitude(below), up = format.magnitude(above) - magnitude;
  const bool round_up = down > up || (down == up && (ties == Ties::kAway || (below & 1u) != 0));
  return static_cast<std::uint16_t>(sign | (round_up ? above : below));
}

void expect_rounded(std::uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  const bf16 nearest_even = bf16_from_float(value);
  const bf16 nearest_away = bf16_weight_from_float(value);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(to_float(nearest_even))) << std::hex << bits;
    ASSERT_TRUE(std::isnan(to_float(nearest_away))) << std::hex << bits;
    ASSERT_NE(nearest_even.bits & 0x40u, 0u) << "a quiet NaN, of " << std::hex << bits;
    return;
  }
  ASSERT_EQ(nearest_even.bits, round_by_double(kBf16, value, Ties::kEven)) << std::hex << bits;
  ASSERT_EQ(nearest_away.bits, round_by_double(kBf16, value, Ties::kAway)) << std::hex << bits;
  // The split master stores this remainder next to the weight.
  const auto remainder = static_cast<std::int64_t>(bits) -
                         static_cast<std::int64_t>(std::uint32_t{nearest_away.bits} << 16);
  ASSERT_GE(remainder, -32768) << std::hex << bits;
  ASSERT_LE(remainder, 32767) << std::hex << bits;
}

// Every upper half (sign, exponent, kept mantissa) with every lower half where a rounding changes.
TEST(Bf16, RoundsAsADoubleReferenceDoes) {
  std::vector<std::uint32_t> lowers{0x0000, 0x0001, 0x3fff, 0x4000, 0x7ffe, 0x7fff,
                                    0x8000, 0x8001, 0x8002, 0xc000, 0xfffe, 0xffff};
  const CounterRng rng(7, stream_of("bf16"));
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : lowers) {
      expect_rounded((upper << 16) | lower);
      if (HasFatalFailure()) return;
    }
    expect_rounded((upper << 16) | static_cast<std::uint32_t>(rng.below(upper, 0x10000)));
    if (HasFatalFailure()) return;
  }
}

// Every lower half, for upper halves at the edges: zero, subnormal, odd, even, largest, infinity.
TEST(Bf16, RoundsEveryLowerHalfAtTheEdges) {
  for (const std::uint32_t upper : {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x3f81u, 0x7f7eu,
                                    0x7f7fu, 0x7f80u, 0x8000u, 0xbf81u, 0xff7fu, 0xff80u}) {
    for (std::uint32_t lower = 0; lower < 0x10000u; ++lower) {
      expect_rounded((upper << 16) | lower);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Bf16, EveryNumberSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const bf16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) continue;
    ASSERT_EQ(bf16_from_float(to_float(value)).bits, bits);
    ASSERT_EQ(bf16_weight_from_float(to_float(value)).bits, bits);
  }
}

void expect_f16(std::uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  const f16 half = f16_from_float(value);
  if (std::isnan(value)) {
    ASSERT_GT(half.bits & 0x7fffu, 0x7dffu) << "a quiet NaN, of " << std::hex << bits;
    ASSERT_EQ(half.bits >> 15, bits >> 31);
    return;
  }
  ASSERT_EQ(half.bits, round_by_double(kF16, value, Ties::kEven)) << std::hex << bits;
}

// Around every tie: the last bit kept is fp32's bit 13, or higher in a subnormal.
TEST(F16, RoundsAsADoubleReferenceDoes) {
  const CounterRng rng(8, stream_of("f16"));
  for (std::uint32_t upper = 0; upper < 0x8000u; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u,
                                      0x3001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      expect_f16((upper << 16) | lower);
      expect_f16(0x80000000u | (upper << 16) | lower);
    }
    expect_f16((upper << 16) | static_cast<std::uint32_t>(rng.below(upper, 0x10000)));
    if (HasFatalFailure()) return;
  }
}

TEST(F16, RoundsHalfWayBetweenNeighboursToEven) {
  for (std::uint32_t lower = 0; lower < 0x7c00u; ++lower) {
    const double middle = 0.5 * (f16_magnitude(lower) + f16_magnitude(lower + 1));
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle);
    ASSERT_EQ(f16_from_float(tie).bits, lower + (lower & 1u));
    ASSERT_EQ(f16_from_float(std::nextafterf(tie, 0.0f)).bits, lower);
    ASSERT_EQ(f16_from_float(std::nextafterf(tie, 1e9f)).bits, lower + 1);
    ASSERT_EQ(f16_from_float(-tie).bits, 0x8000u | (lower + (lower & 1u)));
  }
}

TEST(F16, EveryNumberIsWidenedExactlyAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const f16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude > 0x7c00u) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(f16_from_float(value).bits, bits | 0x200u);
      continue;
    }
    if (magnitude == 0x7c00u) {
      ASSERT_TRUE(std::isinf(value));
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), f16_magnitude(magnitude));
    }
    ASSERT_EQ(std::signbit(value), bits >= 0x8000u);
    ASSERT_EQ(f16_from_float(value).bits, bits);
  }
}

TEST(DType, NamesAndSizesAgree) {
  EXPECT_EQ(dtype_name(DType::kF32), "F32");
  EXPECT_EQ(dtype_name(DType::kBF16), "BF16");
  // safetensors spells the width in the name.
  for (const DType type : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                           DType::kI32, DType::kI16, DType::kU16, DType::kU8}) {
    const std::string name(dtype_name(type));
    EXPECT_EQ(8 * dtype_bytes(type), std::stoul(name.substr(name.find_first_of("0123456789"))));
  }
}

}  // namespace
}  // namespace sluice
