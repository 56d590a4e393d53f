// Philox4x32-10, the counter-based generator (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A number is a pure function of (key, counter): never of rank, order or time.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

using PhiloxBlock = std::array<std::uint32_t, 4>;

// `rounds` rounds over a 128-bit counter with a 64-bit key. Ten is the generator's name; seven pass
// BigCrush too (the paper's table 2).
constexpr PhiloxBlock philox4x32(std::uint64_t key, std::uint64_t counter_low,
                                 std::uint64_t counter_high, int rounds = 10) {
  // Multipliers and Weyl key increments of Philox4x32 (Salmon et al. 2011, table
  // 2; Random123 1.14).
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
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

// A stream of draws named by a seed and a 64-bit purpose (a hash of "init/<tensor>", "data", ...).
class CounterRng {
 public:
  CounterRng(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  // The index-th value of the stream. Values may be computed in any order.
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
