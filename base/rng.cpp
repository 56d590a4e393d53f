#include "base/rng.hpp"

#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace sluice {

namespace {

// Multipliers and Weyl key increments of Philox4x32 (Salmon et al. 2011, table 2; Random123 1.14).
constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;

constexpr double kTwoToMinus53 = 0x1.0p-53;

std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

}  // namespace

PhiloxBlock philox4x32(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high,
                       int rounds) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  PhiloxBlock x{
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * x[0];
    const std::uint64_t product1 = kMultiplier1 * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return x;
}

std::uint64_t CounterRng::bits(std::uint64_t index) const {
  const PhiloxBlock block = philox4x32(seed_, index, stream_);
  return join(block[0], block[1]);
}

std::uint64_t CounterRng::below(std::uint64_t index, std::uint64_t bound) const {
  SLUICE_CHECK(bound > 0);
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

double CounterRng::uniform(std::uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * kTwoToMinus53;
}

float CounterRng::normal(std::uint64_t index) const {
  const PhiloxBlock block = philox4x32(seed_, index, stream_);
  // (0, 1]: the logarithm stays finite; the largest magnitude is sqrt(2 * 53 * ln 2) = 8.57.
  const double radius_uniform =
      static_cast<double>((join(block[0], block[1]) >> 11) + 1) * kTwoToMinus53;
  const double angle_uniform = static_cast<double>(join(block[2], block[3]) >> 11) * kTwoToMinus53;
  return static_cast<float>(std::sqrt(-2.0 * std::log(radius_uniform)) *
                            std::cos(2.0 * std::numbers::pi * angle_uniform));
}

}  // namespace sluice
