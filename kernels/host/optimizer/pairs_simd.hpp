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

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/host/optimizer/formats_simd.hpp"
#include "kernels/host/optimizer/noise_simd.hpp"
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

// Magnitudes as integers, the larger of the two.
HWY_INLINE hn::Vec<hn::RebindToSigned<WideTag>> largest_bits(const Pair& pair) {
  const hn::RebindToSigned<WideTag> i;
  const auto magnitude = hn::Set(i, 0x7fffffff);
  return hn::Max(hn::And(hn::BitCast(i, pair.even), magnitude),
                 hn::And(hn::BitCast(i, pair.odd), magnitude));
}

// special: some number is not below the largest finite bf16.
HWY_INLINE void store_pair(const Pair& m, const MomentBF16& moment, std::int64_t at, bool special) {
  const WideTag d;
  const PairBits u;
  const auto noise = load_bits(moment.noise + at);
  const auto even = hn::And(noise, hn::Set(u, 0xffffu));
  const auto odd = hn::ShiftRight<16>(noise);
  if (HWY_UNLIKELY(special)) {
    store_upper_pair(round_stochastic_bits(d, m.even, even), round_stochastic_bits(d, m.odd, odd),
                     moment.moment + at);
  } else {
    store_upper_pair(hn::Add(hn::BitCast(u, m.even), even), hn::Add(hn::BitCast(u, m.odd), odd),
                     moment.moment + at);
  }
}

// Elements [0, count) of a stage, count a multiple of kPairsStep.
constexpr std::int64_t kPairsStep = 32;

template <class Rule, class Prefetches>
HWY_NOINLINE void run_pairs(const Rule rule, const bf16* grad, const MasterSplit master,
                            const MomentBF16 moment1, const MomentBF16 moment2, Prefetches ahead,
                            const std::int64_t count) {
  static_assert(Rule::kMoments >= 1);
  const WideTag d;
  const hn::RebindToSigned<WideTag> i;
  constexpr auto kStep = 2 * static_cast<std::int64_t>(hn::MaxLanes(WideTag()));
  static_assert(kPairsStep % kStep == 0);
  for (std::int64_t line = 0; line < count; line += kPairsStep) {
    ahead.prefetch_line();
    ahead.prefetch_line();
    for (std::int64_t at = line; at < line + kPairsStep; at += kStep) {
      const Pair g = load_pair(grad + at);
      Pair w = load_pair(master, at);
      Pair m = load_pair(moment1.moment + at);
      Pair v{hn::Zero(d), hn::Zero(d)};
      if constexpr (Rule::kMoments >= 2) v = load_pair(moment2.moment + at);
      w.even = rule(d, g.even, m.even, v.even, w.even);
      w.odd = rule(d, g.odd, m.odd, v.odd, w.odd);
      store_pair(w, master, at);
      auto largest = largest_bits(m);
      if constexpr (Rule::kMoments >= 2) largest = hn::Max(largest, largest_bits(v));
      const bool special = !hn::AllFalse(i, hn::Gt(largest, hn::Set(i, 0x7f7effff)));
      store_pair(m, moment1, at, special);
      if constexpr (Rule::kMoments >= 2) store_pair(v, moment2, at, special);
    }
  }
}

}  // namespace sluice::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
