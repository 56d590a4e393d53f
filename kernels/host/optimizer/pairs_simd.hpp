// The loop for updates with only 16-bit arrays: bf16 gradient, split master, bf16 moments. A 32-bit
// lane holds two neighbours. Numbers are widened and narrowed by shifts and masks alone, with even
// elements in one vector and odd ones in another, without permutations. The bits are those of
// stage_simd.hpp, which targets without vectors use instead. Included once per instruction set
// (kernels/host/simd.hpp).
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_PAIRS) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_PAIRS
#undef SLUICE_KERNELS_HOST_OPTIMIZER_PAIRS
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_PAIRS
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/host/optimizer/formats_simd.hpp"
#include "kernels/host/optimizer/noise_simd.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"
#include "kernels/host/simd.hpp"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

using PairBits = BitsOf<WideTag>;

struct Pair {
  hn::Vec<WideTag> even, odd;
};

HWY_INLINE hn::Vec<PairBits> load_bits(const void* from) {
  return hn::LoadU(PairBits(), static_cast<const std::uint32_t*>(from));
}

HWY_INLINE Pair load_pair(const bf16* from) {
  const auto both = load_bits(from);
  const auto odd = hn::And(both, hn::Set(PairBits(), 0xffff0000u));
  return {hn::BitCast(WideTag(), hn::ShiftLeft<16>(both)), hn::BitCast(WideTag(), odd)};
}

// The upper halves of the even and odd numbers as neighbours; likewise the lower halves.
HWY_INLINE hn::Vec<PairBits> upper_halves(hn::Vec<PairBits> even, hn::Vec<PairBits> odd) {
  return hn::OrAnd(hn::ShiftRight<16>(even), odd, hn::Set(PairBits(), 0xffff0000u));
}
HWY_INLINE hn::Vec<PairBits> lower_halves(hn::Vec<PairBits> even, hn::Vec<PairBits> odd) {
  return hn::OrAnd(hn::ShiftLeft<16>(odd), even, hn::Set(PairBits(), 0x0000ffffu));
}

HWY_INLINE void store_bits(hn::Vec<PairBits> bits, void* to) {
  hn::StoreU(bits, PairBits(), static_cast<std::uint32_t*>(to));
}

// Returns all ones in each 16-bit half with the sign bit set.
HWY_INLINE hn::Vec<PairBits> negative_halves(hn::Vec<PairBits> bits) {
  const hn::Repartition<std::int16_t, WideTag> half;
  return hn::BitCast(PairBits(), hn::ShiftRight<15>(hn::BitCast(half, bits)));
}
HWY_INLINE hn::Vec<PairBits> add_halves(hn::Vec<PairBits> a, hn::Vec<PairBits> b) {
  const hn::Repartition<std::int16_t, WideTag> half;
  return hn::BitCast(PairBits(), hn::Add(hn::BitCast(half, a), hn::BitCast(half, b)));
}
HWY_INLINE hn::Vec<PairBits> subtract_halves(hn::Vec<PairBits> a, hn::Vec<PairBits> b) {
  const hn::Repartition<std::int16_t, WideTag> half;
  return hn::BitCast(PairBits(), hn::Sub(hn::BitCast(half, a), hn::BitCast(half, b)));
}

// The master is weight * 2^16 + remainder with a signed remainder. A negative remainder borrows
// from the upper half, which is 16-bit arithmetic on both neighbours at once.
HWY_INLINE Pair load_pair(const MasterSplit& master, std::int64_t at) {
  const WideTag d;
  const PairBits u;
  const auto lower = load_bits(master.remainder + at);
  const auto upper = add_halves(load_bits(master.weight + at), negative_halves(lower));
  const auto even = hn::OrAnd(hn::ShiftLeft<16>(upper), lower, hn::Set(u, 0x0000ffffu));
  const auto odd = hn::OrAnd(hn::ShiftRight<16>(lower), upper, hn::Set(u, 0xffff0000u));
  return {hn::BitCast(d, even), hn::BitCast(d, odd)};
}

// Precondition: no number is NaN. Rounding away is then a carry from the remainder's sign.
HWY_INLINE void store_pair(const Pair& w, const MasterSplit& master, std::int64_t at) {
  const PairBits u;
  const auto even = hn::BitCast(u, w.even), odd = hn::BitCast(u, w.odd);
  const auto lower = lower_halves(even, odd);
  store_bits(lower, master.remainder + at);
  store_bits(subtract_halves(upper_halves(even, odd), negative_halves(lower)), master.weight + at);
}

HWY_INLINE void store_special_pair(const Pair& w, const MasterSplit& master, std::int64_t at) {
  const WideTag d;
  const PairBits u;
  store_bits(lower_halves(hn::BitCast(u, w.even), hn::BitCast(u, w.odd)), master.remainder + at);
  store_bits(upper_halves(round_away_bits(d, w.even), round_away_bits(d, w.odd)),
             master.weight + at);
}

// Whether a master may be NaN, or a moment's magnitude may reach the largest finite bf16. "No" is
// always right. The bits of the moments are or-ed, so that four cost as much as one; hence a
// needless "yes" if a moment is at least 2 and the others' exponents fill up its own, and if
// masters are infinities of both signs.
HWY_INLINE bool may_be_special(const Pair& w, const Pair& a, const Pair& b) {
  const WideTag d;
  const PairBits u;
  const auto bits = [&](hn::Vec<WideTag> x) HWY_ATTR { return hn::BitCast(u, x); };
  const auto all = hn::Or(hn::Or3(bits(a.even), bits(a.odd), bits(b.even)), bits(b.odd));
  const hn::RebindToSigned<WideTag> i;
  const auto magnitude = hn::BitCast(i, hn::And(all, hn::Set(u, 0x7fffffffu)));
  const auto large = hn::RebindMask(d, hn::Gt(magnitude, hn::Set(i, 0x7f7effff)));
  return !hn::AllFalse(d, hn::Or(large, hn::IsNaN(hn::Add(w.even, w.odd))));
}

// Noise for the first moments of even and odd elements. Second moments use them exchanged.
struct PairNoise {
  hn::Vec<PairBits> even, odd;
};

HWY_INLINE PairNoise load_noise(const std::uint16_t* noise) {
  const auto both = load_bits(noise);
  return {hn::And(both, hn::Set(PairBits(), 0xffffu)), hn::ShiftRight<16>(both)};
}

HWY_INLINE void store_pair(const Pair& m, hn::Vec<PairBits> even, hn::Vec<PairBits> odd, bf16* to) {
  const PairBits u;
  store_bits(
      upper_halves(hn::Add(hn::BitCast(u, m.even), even), hn::Add(hn::BitCast(u, m.odd), odd)), to);
}

HWY_INLINE void store_special_pair(const Pair& m, hn::Vec<PairBits> even, hn::Vec<PairBits> odd,
                                   bf16* to) {
  const WideTag d;
  store_bits(
      upper_halves(round_stochastic_bits(d, m.even, even), round_stochastic_bits(d, m.odd, odd)),
      to);
}

// The arrays of the loop, each from the same element on.
struct PairArrays {
  const bf16* grad;
  MasterSplit master;
  bf16* moment1;
  bf16* moment2;  // null for rules with one moment
  // Forced inline: g++ 12 takes a function that only prefetches for one without effect and drops
  // its calls.
  HWY_INLINE void prefetch(std::int64_t at) const {
    hwy::Prefetch(grad + at);
    hwy::Prefetch(master.weight + at);
    hwy::Prefetch(master.remainder + at);
    hwy::Prefetch(moment1 + at);
    if (moment2 != nullptr) hwy::Prefetch(moment2 + at);
  }
};

inline PairArrays pair_arrays(const UpdateArrays& arrays, std::int64_t first) {
  const auto from = [first](void* array) {
    return array == nullptr ? nullptr : static_cast<bf16*>(array) + first;
  };
  return {static_cast<const bf16*>(arrays.grad) + first,
          {from(arrays.weight), static_cast<std::int16_t*>(arrays.master) + first},
          from(arrays.moment1),
          from(arrays.moment2)};
}

constexpr auto kPairsStep = static_cast<std::int64_t>(kRoundingNoiseKeys);
// Six cache lines of each array. 64, 128, 256 and 512 elements were slower or no faster on two Ice
// Lake cores. From a page on, the rate drops by a tenth or more, since arrays begin at similar page
// offsets (see stage_simd.hpp).
constexpr std::int64_t kPairsAhead = 192;
constexpr std::int64_t kPairsLine = 32;

// Updates elements [begin, begin + kPairsStep).
template <class Rule>
HWY_INLINE void update_pairs(const Rule& rule, const PairArrays& arrays, const std::uint16_t* noise,
                             std::int64_t begin) {
  const WideTag d;
  constexpr auto kStep = 2 * static_cast<std::int64_t>(hn::MaxLanes(WideTag()));
  static_assert(kPairsStep % kStep == 0);
#pragma GCC unroll 2  // so that neighbours' divisions and roots overlap
  for (std::int64_t lane = 0; lane < kPairsStep; lane += kStep) {
    const std::int64_t at = begin + lane;
    if (lane % kPairsLine == 0) arrays.prefetch(at + kPairsAhead);
    const Pair g = load_pair(arrays.grad + at);
    Pair w = load_pair(arrays.master, at);
    Pair m = load_pair(arrays.moment1 + at);
    Pair v{hn::Zero(d), hn::Zero(d)};
    if constexpr (Rule::kMoments >= 2) v = load_pair(arrays.moment2 + at);
    w.even = rule(d, g.even, m.even, v.even, w.even);
    w.odd = rule(d, g.odd, m.odd, v.odd, w.odd);
    const PairNoise n = load_noise(noise + lane);
    if (HWY_UNLIKELY(may_be_special(w, m, v))) {
      store_special_pair(w, arrays.master, at);
      store_special_pair(m, n.even, n.odd, arrays.moment1 + at);
      if constexpr (Rule::kMoments >= 2) {
        store_special_pair(v, n.odd, n.even, arrays.moment2 + at);
      }
      continue;
    }
    store_pair(w, arrays.master, at);
    store_pair(m, n.even, n.odd, arrays.moment1 + at);
    if constexpr (Rule::kMoments >= 2) store_pair(v, n.odd, n.even, arrays.moment2 + at);
  }
}

// Updates elements [0, count); the first has key `key`; both are multiples of kPairsStep. Computing
// the noise between the updates that use it overlaps it with waiting for memory.
template <class Rule>
HWY_NOINLINE void run_pairs(const Rule rule, const PairArrays arrays, const std::uint64_t seed,
                            const std::int64_t step, const std::uint64_t key,
                            const std::int64_t count) {
  static_assert(Rule::kMoments >= 1);
  alignas(64) std::uint16_t noise[kRoundingNoiseKeys];
  std::uint64_t counter = key / kRoundingNoiseKeys * 16;
  std::int64_t at = 0;
  while (at < count) {
    // While the counters' upper bits stay the same, half a round is constant.
    const std::uint64_t upper = counter >> 32;
    const auto same = static_cast<std::int64_t>((((upper + 1) << 32) - counter) / 16) * kPairsStep;
    const std::int64_t end = std::min(count, at + same);
    for (; at < end; at += kPairsStep, counter += 16) {
      fill_noise_of(seed, step, upper, counter & 0xffffffffu, noise);
      update_pairs(rule, arrays, noise, at);
    }
  }
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
