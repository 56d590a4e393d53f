// The formats of gradient, weight and moments that are converted in registers. Included once per
// instruction set (see kernels/host/simd.hpp).
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_FORMATS) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_FORMATS
#undef SLUICE_KERNELS_HOST_OPTIMIZER_FORMATS
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_FORMATS
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/host/optimizer/noise_simd.hpp"
#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Each type points to the first element of its stage. load(d, at) and store(d, number, at) access
// element `at`.

template <class T>
struct Grad {
  const T* from;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    return HWY_NAMESPACE::load(d, from + at);
  }
};

// A gradient summed in fp32, rounded to bf16 on load.
struct GradThroughBF16 {
  const float* from;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    return through_bf16(d, hn::LoadU(d, from + at));
  }
};

struct MasterAlone {
  float* master;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    return hn::LoadU(d, master + at);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> number, std::int64_t at) const {
    hn::StoreU(number, d, master + at);
  }
};

// A master with a bf16 weight, which this loop never reads. An aligned weight is streamed past the
// caches, so its lines are not fetched only to be overwritten. A FlushStream ends the loop.
struct MasterAndBF16 {
  float* master;
  bf16* weight;
  bool streamed;
  static bool aligned(const bf16* weight) {
    return reinterpret_cast<std::uintptr_t>(weight) % 64 == 0;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    return hn::LoadU(d, master + at);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> number, std::int64_t at) const {
    hn::StoreU(number, d, master + at);
    // Fewer than 16 bytes cannot be streamed.
    if constexpr (hn::MaxLanes(HalfBitsOf<D>()) * sizeof(bf16) >= 16) {
      if (streamed) return stream_upper_half(d, round_away_bits(d, number), weight + at);
    }
    store_weight(d, number, weight + at);
  }
#if HWY_MAX_BYTES == 64
  // Stores two vectors of 16 numbers. The weights' cache line is written as one; a half line may
  // leave the write-combining buffer early. Without streaming this is two calls of store().
  HWY_INLINE void store_line(WideTag d, hn::Vec<WideTag> a, hn::Vec<WideTag> b,
                             std::int64_t at) const {
    if (!streamed) {
      store(d, a, at);
      return store(d, b, at + 16);
    }
    hn::StoreU(a, d, master + at);
    hn::StoreU(b, d, master + at + 16);
    const hn::Repartition<std::uint16_t, WideTag> line;
    hn::Stream(hn::Combine(line, upper_half(d, round_away_bits(d, b)),
                           upper_half(d, round_away_bits(d, a))),
               line, &weight[at].bits);
  }
#endif
};

// A bf16 weight with its remainder (kernels/split_master.hpp).
struct MasterSplit {
  bf16* weight;
  std::int16_t* remainder;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    const hn::RebindToSigned<D> i;
    const auto upper = hn::BitCast(i, HWY_NAMESPACE::load(d, weight + at));
    const auto lower = hn::PromoteTo(i, hn::LoadU(hn::Rebind<std::int16_t, D>(), remainder + at));
    return hn::BitCast(d, hn::Add(upper, lower));
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> number, std::int64_t at) const {
    const hn::RebindToSigned<D> i;
    const hn::Rebind<std::int16_t, D> half;
    store_weight(d, number, weight + at);
    const auto lower = hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(i, number)));
    hn::StoreU(hn::DemoteTo(half, lower), half, remainder + at);
  }
};

struct MomentF32 {
  float* moment;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    return hn::LoadU(d, moment + at);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> number, std::int64_t at) const {
    hn::StoreU(number, d, moment + at);
  }
};

struct MomentBF16 {
  bf16* moment;
  const std::uint16_t* noise;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t at) const {
    return HWY_NAMESPACE::load(d, moment + at);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> number, std::int64_t at) const {
    const auto bits = hn::PromoteTo(BitsOf<D>(), hn::LoadU(HalfBitsOf<D>(), noise + at));
    store_upper_half(d, round_stochastic_bits(d, number, bits), moment + at);
  }
};

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
