// Vector code of kernels/stochastic_rounding.hpp, with the same bits. Included once per instruction
// set (see kernels/host/simd.hpp).
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_NOISE) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_NOISE
#undef SLUICE_KERNELS_HOST_OPTIMIZER_NOISE
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_NOISE
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/host/simd.hpp"
#include "kernels/stochastic_rounding.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// fill_noise_of: moment1's noise of the 128 keys with counters upper * 2^32 + lower + [0, 16);
// lower is a multiple of 16. moment2's noise is the same with neighbours exchanged.
#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void fill_noise_of(std::uint64_t seed, std::int64_t step, std::uint64_t upper,
                              std::uint64_t lower, std::uint16_t* noise) {
  const std::uint64_t first_key = (upper << 32 | lower) / 16 * kRoundingNoiseKeys;
  for (std::uint64_t i = 0; i < kRoundingNoiseKeys; ++i) {
    noise[i] = rounding_noise(seed, step, first_key + i, 1);
  }
}

#else

using Word = hn::RebindToUnsigned<WideTag>;
using Wide = hn::RepartitionToWide<Word>;

// One Philox number in the lower half of each 64-bit lane; upper halves are garbage after a
// product.
struct PhiloxLanes {
  hn::Vec<Wide> x0, x1, x2, x3;
};

// counter: below 2^32 in each lane; `upper` holds the counters' upper bits, the same for all lanes.
// Values that depend only on `upper` and the step are constant, so the first two rounds cost half a
// round.
HWY_INLINE PhiloxLanes philox_lanes(std::uint64_t seed, hn::Vec<Wide> counter, std::uint64_t upper,
                                    std::uint64_t step) {
  static_assert(kRoundingNoiseRounds > 2);
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  const Wide wide;
  const Word word;
  const auto multiplier0 = hn::Set(word, static_cast<std::uint32_t>(kMultiplier0));
  const auto multiplier1 = hn::Set(word, static_cast<std::uint32_t>(kMultiplier1));
  const auto multiply = [&](hn::Vec<Wide> x, hn::Vec<Word> by)
                            HWY_ATTR { return hn::MulEven(hn::BitCast(word, x), by); };
  const auto xor_set = [&](hn::Vec<Wide> x, std::uint64_t constant)
                           HWY_ATTR { return hn::Xor(x, hn::Set(wide, constant)); };
  const auto mix = [&](hn::Vec<Wide> product, hn::Vec<Wide> x, std::uint32_t key) HWY_ATTR {
    return hn::Xor3(hn::ShiftRight<32>(product), x, hn::Set(wide, key));
  };
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  // Round 1: x1, x2, x3 are constant; so are the new x0 and x1.
  const std::uint64_t step_product = kMultiplier1 * (step & 0xffffffffu);
  const std::uint64_t x0 = (step_product >> 32) ^ upper ^ key0;
  auto product0 = multiply(counter, multiplier0);
  auto x2 = xor_set(hn::ShiftRight<32>(product0), (step >> 32) ^ key1);
  auto x3 = product0;
  key0 += kWeyl0;
  key1 += kWeyl1;
  // Round 2: x0 and x1 are constant; so is the new x3.
  const std::uint64_t x0_product = kMultiplier0 * x0;
  auto product1 = multiply(x2, multiplier1);
  PhiloxLanes x{xor_set(hn::ShiftRight<32>(product1), (step_product & 0xffffffffu) ^ key0),
                product1, xor_set(x3, (x0_product >> 32) ^ key1), hn::Set(wide, x0_product)};
  for (int round = 2; round < kRoundingNoiseRounds; ++round) {
    key0 += kWeyl0;
    key1 += kWeyl1;
    product0 = multiply(x.x0, multiplier0);
    product1 = multiply(x.x2, multiplier1);
    x.x0 = mix(product1, x.x1, key0);
    x.x2 = mix(product0, x.x3, key1);
    x.x1 = product1;
    x.x3 = product0;
  }
  return x;
}

HWY_INLINE void fill_noise_of(std::uint64_t seed, std::int64_t step, std::uint64_t upper,
                              std::uint64_t lower, std::uint16_t* HWY_RESTRICT noise) {
  const Wide wide;
  const Word word;
  constexpr std::uint64_t kStep = hn::MaxLanes(Word());
  for (std::uint64_t lane = 0; lane < 16; lane += kStep) {
    const auto even = hn::Add(hn::ShiftLeft<1>(hn::Iota(wide, 0)), hn::Set(wide, lower + lane));
    const auto odd = hn::Add(even, hn::Set(wide, 1));
    const auto at_step = static_cast<std::uint64_t>(step);
    const PhiloxLanes a = philox_lanes(seed, even, upper, at_step);
    const PhiloxLanes b = philox_lanes(seed, odd, upper, at_step);
    const auto put = [&](hn::Vec<Wide> of_even, hn::Vec<Wide> of_odd, std::uint64_t at) HWY_ATTR {
      const auto high = hn::DupEven(hn::BitCast(word, of_odd));
      hn::StoreU(hn::OddEven(high, hn::BitCast(word, of_even)), word,
                 reinterpret_cast<std::uint32_t*>(noise + at + 2 * lane));
    };
    put(a.x0, b.x0, 0);
    put(a.x1, b.x1, 32);
    put(a.x2, b.x2, 64);
    put(a.x3, b.x3, 96);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

// Noise of both moments for keys first_key + [0, 128); first_key is a multiple of 128.
HWY_INLINE void fill_noise(std::uint64_t seed, std::int64_t step, std::uint64_t first_key,
                           std::uint16_t* HWY_RESTRICT noise1, std::uint16_t* HWY_RESTRICT noise2) {
  const std::uint64_t counter = first_key / kRoundingNoiseKeys * 16;
  fill_noise_of(seed, step, counter >> 32, counter & 0xffffffffu, noise1);
  for (std::uint64_t i = 0; i < kRoundingNoiseKeys; i += 2) {
    noise2[i] = noise1[i + 1];
    noise2[i + 1] = noise1[i];
  }
}

// bf16_stochastic, in the upper halves. noise: below 2^16.
template <class D>
HWY_INLINE hn::Vec<BitsOf<D>> round_stochastic_bits(D d, hn::Vec<D> value,
                                                    hn::Vec<BitsOf<D>> noise) {
  const BitsOf<D> u;
  const hn::RebindToSigned<D> i;
  const auto bits = hn::BitCast(u, value);
  const auto magnitude = hn::BitCast(i, hn::And(bits, hn::Set(u, 0x7fffffffu)));
  const auto large = hn::RebindMask(u, hn::Gt(magnitude, hn::Set(i, 0x7f7effff)));
  return quiet_nan_or(d, value, hn::Add(bits, hn::IfThenElse(large, hn::Set(u, 0x8000u), noise)));
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
