#include "engine/data/sample_order.hpp"

#include <bit>

#include "base/error.hpp"
#include "base/rng.hpp"

namespace sluice::data {

namespace {
// Four rounds suffice for a pseudo-random permutation with large halves (Luby and Rackoff, 1988).
// Domains here may be a few windows; more rounds mix those better and cost nothing.
constexpr std::uint64_t kRounds = 8;
}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, std::uint64_t count)
    : seed_(seed ^ stream_of("data order")), count_(count) {
  SLUICE_CHECK(count > 0 && count < std::uint64_t{1} << 62);
  const auto bits = static_cast<unsigned>(std::bit_width(count - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

std::uint64_t SampleOrder::window_of(std::uint64_t index) const {
  const std::uint64_t epoch = index / count_;
  std::uint64_t value = index % count_;
  // The domain is below 4 * count, so a walk takes less than four steps on average. It ends,
  // because the permutation's cycle through a value below count returns to it.
  do {
    value = permute(epoch, value);
  } while (value >= count_);
  return value;
}

std::uint64_t SampleOrder::permute(std::uint64_t epoch, std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    // right has at most 31 bits, so round and half fit into one counter word without overlap.
    const PhiloxBlock block = philox4x32(seed_, right | round << 32, epoch);
    const std::uint64_t mixed = left ^ (block[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace sluice::data
