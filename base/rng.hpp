// Philox4x32-10, the counter-based generator (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A number is a pure function of (key, counter): never of rank, order or time.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

using PhiloxBlock = std::array<std::uint32_t, 4>;

// `rounds` rounds over a 128-bit counter with a 64-bit key. Ten is the generator's name; seven pass
// BigCrush too (the paper's table 2).
PhiloxBlock philox4x32(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high,
                       int rounds = 10);

// A stream of draws named by a seed and a 64-bit purpose (a hash of "init/<tensor>", "data", ...).
class CounterRng {
 public:
  CounterRng(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  // The index-th value of the stream; all are independent of each other's evaluation.
  std::uint64_t bits(std::uint64_t index) const;
  // Uniform in [0, bound), bound > 0, without modulo bias beyond 2^-64 (multiply-shift).
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;
  // Uniform in [0, 1).
  double uniform(std::uint64_t index) const;
  // Standard normal by Box-Muller from one Philox block; IEEE operations and libm only.
  float normal(std::uint64_t index) const;

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

// FNV-1a of a name: the purpose of a CounterRng.
constexpr std::uint64_t stream_of(const char* name) {
  std::uint64_t hash = 14695981039346656037ull;
  for (; *name != '\0'; ++name)
    hash = (hash ^ static_cast<unsigned char>(*name)) * 1099511628211ull;
  return hash;
}

}  // namespace sluice
