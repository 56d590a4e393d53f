// The loop of stage_simd.hpp for updates all of whose arrays are of 16 bits: bf16 gradient, split
// master, bf16 moments. A 32-bit lane holds two neighbours, so numbers are widened and narrowed by
// shifts and masks alone: even elements in one vector, odd ones in another, nothing is permuted.
// The bits are those of the other loop. Included once for each instruction set
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

HWY_BEFORE_NAMESPACE();
namespace sluice::host::HWY_NAMESPACE {

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

// The upper halves of even and of odd numbers, as neighbours.
HWY_INLINE void store_upper_pair(hn::Vec<PairBits> even, hn::Vec<PairBits> odd, bf16* to) {
  const PairBits u;
  hn::StoreU(hn::Or(hn::ShiftRight<16>(even), hn::And(odd, hn::Set(u, 0xffff0000u))), u,
             reinterpret_cast<std::uint32_t*>(to));
}

HWY_INLINE Pair load_pair(const MasterSplit& master, std::int64_t at) {
  const WideTag d;
  const hn::RebindToSigned<WideTag> i;
  const Pair upper = load_pair(master.weight + at);
  const auto lower = hn::BitCast(i, load_bits(master.remainder + at));
  const auto even = hn::ShiftRight<16>(hn::ShiftLeft<16>(lower));
  return {hn::BitCast(d, hn::Add(hn::BitCast(i, upper.even), even)),
          hn::BitCast(d, hn::Add(hn::BitCast(i, upper.odd), hn::ShiftRight<16>(lower)))};
}

HWY_INLINE void store_pair(const Pair& w, const MasterSplit& master, std::int64_t at) {
  const WideTag d;
  const PairBits u;
  store_upper_pair(round_away_bits(d, w.even), round_away_bits(d, w.odd), master.weight + at);
  const auto even = hn::And(hn::BitCast(u, w.even), hn::Set(u, 0xffffu));
  hn::StoreU(hn::Or(even, hn::ShiftLeft<16>(hn::BitCast(u, w.odd))), u,
             reinterpret_cast<std::uint32_t*>(master.remainder + at));
}

// Whether some magnitude may be at or above the largest finite bf16: never wrong where it says no.
// (The numbers' bits are or-ed, so that four cost what one does. It says yes without need where
// some number is at or above 2 and the others' exponents happen to fill up its own.)
HWY_INLINE bool may_be_special(const Pair& a, const Pair& b) {
  const PairBits u;
  const auto bits = [&](hn::Vec<WideTag> x) HWY_ATTR { return hn::BitCast(u, x); };
  const auto all = hn::Or(hn::Or(bits(a.even), bits(a.odd)), hn::Or(bits(b.even), bits(b.odd)));
  const hn::RebindToSigned<WideTag> i;
  const auto magnitude = hn::BitCast(i, hn::And(all, hn::Set(u, 0x7fffffffu)));
  return !hn::AllFalse(i, hn::Gt(magnitude, hn::Set(i, 0x7f7effff)));
}

HWY_INLINE void store_pair(const Pair& m, const std::uint16_t* noise, bool special, bf16* to) {
  const WideTag d;
  const PairBits u;
  const auto both = load_bits(noise);
  const auto even = hn::And(both, hn::Set(u, 0xffffu));
  const auto odd = hn::ShiftRight<16>(both);
  if (HWY_UNLIKELY(special)) {
    store_upper_pair(round_stochastic_bits(d, m.even, even), round_stochastic_bits(d, m.odd, odd),
                     to);
  } else {
    store_upper_pair(hn::Add(hn::BitCast(u, m.even), even), hn::Add(hn::BitCast(u, m.odd), odd),
                     to);
  }
}

// What the loop visits, each array from the same element on.
struct PairArrays {
  const bf16* grad;
  MasterSplit master;
  bf16* moment1;
  bf16* moment2;  // null for rules with one moment
  void prefetch(std::int64_t at) const {
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
constexpr std::int64_t kPairsAhead = 2048;  // elements of 16 bits: a page of each array
constexpr std::int64_t kPairsLine = 32;

// Elements [at, at + kPairsStep).
template <class Rule>
HWY_INLINE void update_pairs(const Rule& rule, const PairArrays& arrays,
                             const std::uint16_t* noise1, const std::uint16_t* noise2,
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
    store_pair(w, arrays.master, at);
    const bool special = may_be_special(m, v);
    store_pair(m, noise1 + lane, special, arrays.moment1 + at);
    if constexpr (Rule::kMoments >= 2) store_pair(v, noise2 + lane, special, arrays.moment2 + at);
  }
}

// Elements [0, count), the first of which has key `key`; both multiples of kPairsStep. The noise is
// made between the numbers that it rounds, so that memory is never waited for alone.
template <class Rule>
HWY_NOINLINE void run_pairs(const Rule rule, const PairArrays arrays, const std::uint64_t seed,
                            const std::int64_t step, const std::uint64_t key,
                            const std::int64_t count) {
  static_assert(Rule::kMoments >= 1);
  alignas(64) std::uint16_t noise[2][kRoundingNoiseKeys];
  std::uint64_t counter = key / kRoundingNoiseKeys * 16;
  std::int64_t at = 0;
  while (at < count) {
    // As long as the counters' upper bits stay, half a round is constant.
    const std::uint64_t upper = counter >> 32;
    const auto same = static_cast<std::int64_t>((((upper + 1) << 32) - counter) / 16) * kPairsStep;
    const std::int64_t end = std::min(count, at + same);
    for (; at < end; at += kPairsStep, counter += 16) {
      fill_noise_of(seed, step, upper, counter & 0xffffffffu, noise[0], noise[1]);
      update_pairs(rule, arrays, noise[0], noise[1], at);
    }
  }
}

}  // namespace sluice::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
