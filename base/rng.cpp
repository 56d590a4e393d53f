#include "base/rng.hpp"

#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace sluice {

namespace {

constexpr double kTwoToMinus53 = 0x1.0p-53;

std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

}  // namespace

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
