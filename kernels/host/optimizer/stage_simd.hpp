// The loop of all elementwise rules. It handles the formats; a rule is only arithmetic.
//
// 16-bit numbers are widened and narrowed in registers, in the same loop as the rule. Formats that
// need several looks at a number (8-bit blocks, noise), and rare ones, go through arrays of one
// stage's length, 256 elements, which stay in the L1 cache. A rule is therefore compiled some
// fifteen times per instruction set, not once per combination of formats. If no format needs such
// an array, the whole range is one stage, because starting a stage costs as much as a dozen
// vectors.
//
// Memory is prefetched 128 elements ahead: eight lines of each fp32 array. A longer distance can be
// slower: large arrays tend to begin at the same page offset and compete for a few sets of the L1
// cache (256 elements cost a tenth of the rate on two Zen cores). A shorter one is slower where
// memory has high latency (64 elements cost 3% on two Ice Lake cores). Data that a stage reads at
// once at its start is prefetched one stage ahead. A guard is the first to touch memory, a block at
// a time, so with a guard the distance is one block.
//
// Included once per instruction set (see kernels/host/simd.hpp).
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_STAGE) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_STAGE
#undef SLUICE_KERNELS_HOST_OPTIMIZER_STAGE
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_STAGE
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/host/optimizer/block8_simd.hpp"
#include "kernels/host/optimizer/formats_simd.hpp"
#include "kernels/host/optimizer/noise_simd.hpp"
#include "kernels/host/optimizer/pairs_simd.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"
#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// --- prefetch

constexpr std::int64_t kStageElems = 256;
constexpr std::int64_t kAheadElems = 128;
constexpr std::int64_t kLineElems = 16;  // fp32 in a cache line
static_assert(kStageElems % static_cast<std::int64_t>(kBlock8Elems) == 0);

// The next addresses to prefetch, and the bytes of 16 elements in each array. Prefetching beyond an
// array's end is harmless. Arrays that the rule does not read have 0 bytes and a cached address.
struct Ahead {
  static constexpr int kArrays = 5;
  const std::byte* from[kArrays];
  std::int64_t line_bytes[kArrays];

  HWY_INLINE void prefetch_line() {
    for (int k = 0; k < kArrays; ++k) {
      hwy::Prefetch(from[k]);
      from[k] += line_bytes[k];
    }
  }
};

// Returns the prefetch state of a stage that begins at element i.
HWY_INLINE Ahead ahead_of(const UpdateArrays& arrays, int moments, std::int64_t i,
                          const void* cached) {
  Ahead ahead;
  const std::int64_t ahead_elems = arrays.guard == nullptr ? kAheadElems : UpdateGuard::kElems;
  const auto set = [&](int k, bool used, const void* array, std::int64_t elem_bytes) {
    ahead.from[k] = static_cast<const std::byte*>(used ? array : cached);
    ahead.line_bytes[k] = used ? kLineElems * elem_bytes : 0;
    if (used) ahead.from[k] += (i + ahead_elems) * elem_bytes;
  };
  const bool split = arrays.weight_format == WeightFormat::kSplitBF16;
  const std::int64_t moment_bytes = arrays.moments == DType::kF32    ? 4
                                    : arrays.moments == DType::kBF16 ? 2
                                                                     : 1;
  set(0, true, arrays.grad, arrays.grad_elem_bytes());
  set(1, true, arrays.master, split ? 2 : 4);
  set(2, split, arrays.weight, 2);
  set(3, moments >= 1, arrays.moment1, moment_bytes);
  set(4, moments >= 2, arrays.moment2, moment_bytes);
  if (arrays.moments == DType::kBlock8) {
    const std::uint64_t next = static_cast<std::uint64_t>(i + kStageElems) / kBlock8Elems;
    for (int k = 3; k < 3 + moments; ++k) {
      const void* const array = k == 3 ? arrays.moment1 : arrays.moment2;
      ahead.from[k] = static_cast<const std::byte*>(array) + block8_place(next).code_bytes;
    }
  }
  return ahead;
}

// Index of element i of the chunk in the whole model. Precondition: the segment's keys are one run.
inline std::uint64_t key_of(const ParameterSegment& segment, std::int64_t i) {
  return segment.first_key + static_cast<std::uint64_t>(i - segment.begin);
}

// --- a stage

// Arrays for formats that cannot stay in registers.
struct StageRoom {
  alignas(64) float grad[kStageElems];
  alignas(64) float moment1[kStageElems];
  alignas(64) float moment2[kStageElems];
  // Noise of moment 1 and moment 2, starting at a key that is a multiple of 128.
  alignas(64) std::uint16_t noise[2][kStageElems + kRoundingNoiseKeys];
};

// Arguments are passed by value, because stores could alias references.
template <class Rule, class GradOf, class Master, class Moment>
HWY_NOINLINE void run_rule(const Rule rule, const GradOf grad, const Master master,
                           const Moment moment1, const Moment moment2, Ahead ahead,
                           const std::int64_t count) {
  // Returns the new number and stores the moments.
  const auto number = [&](auto d, std::int64_t at) HWY_ATTR {
    auto m = hn::Zero(d);
    auto v = hn::Zero(d);
    if constexpr (Rule::kMoments >= 1) m = moment1.load(d, at);
    if constexpr (Rule::kMoments >= 2) v = moment2.load(d, at);
    const auto w = rule(d, grad.load(d, at), m, v, master.load(d, at));
    if constexpr (Rule::kMoments >= 1) moment1.store(d, m, at);
    if constexpr (Rule::kMoments >= 2) moment2.store(d, v, at);
    return w;
  };
  const auto apply = [&](auto d, std::int64_t at) HWY_ATTR { master.store(d, number(d, at), at); };
  std::int64_t at = 0;
#if HWY_MAX_BYTES == 64
  if constexpr (std::is_same_v<Master, MasterAndBF16>) {
    for (; at + 2 * kLineElems <= count; at += 2 * kLineElems) {
      ahead.prefetch_line();
      const auto a = number(WideTag(), at);
      ahead.prefetch_line();
      master.store_line(WideTag(), a, number(WideTag(), at + kLineElems), at);
    }
  }
#endif
  for (; at + kLineElems <= count; at += kLineElems) {
    ahead.prefetch_line();
    constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(WideTag()));
    for (std::int64_t lane = 0; lane < kLineElems; lane += kStep) apply(WideTag(), at + lane);
  }
  for_lanes(at, count, apply);
}

// Calls body(Grad) for elements from i on.
template <class Body>
HWY_INLINE void with_grad(const UpdateArrays& arrays, std::int64_t i, std::int64_t count,
                          float* room, const Body& body) {
  if (arrays.grad_format == GradFormat::kBF16) {
    body(Grad<bf16>{static_cast<const bf16*>(arrays.grad) + i});
    return;
  }
  const float* from = static_cast<const float*>(arrays.grad) + i;
  const auto fill_room = [&](const auto& number) HWY_ATTR {
    for_lanes(0, count,
              [&](auto d, std::int64_t at) HWY_ATTR { hn::StoreU(number(d, at), d, room + at); });
    body(Grad<float>{room});
  };
  switch (arrays.grad_format) {
    case GradFormat::kF32ThroughBF16:
      return body(GradThroughBF16{from});
    case GradFormat::kF32ThroughF16:
      return fill_room([&](auto d, std::int64_t at)
                           HWY_ATTR { return through_f16(d, hn::LoadU(d, from + at)); });
    case GradFormat::kF16: {
      const f16* const halves = static_cast<const f16*>(arrays.grad) + i;
      return fill_room([&](auto d, std::int64_t at) HWY_ATTR { return load(d, halves + at); });
    }
    default:
      return body(Grad<float>{from});
  }
}

// Calls body(Master) for elements from i on. fp16 weights are made from the `count` new masters in
// a second pass, while those are cached.
constexpr std::int64_t kOnlyRead = 0;
template <class Body>
HWY_INLINE void with_master(const UpdateArrays& arrays, std::int64_t i, std::int64_t count,
                            const Body& body) {
  switch (arrays.weight_format) {
    case WeightFormat::kMasterF16: {
      float* const master = static_cast<float*>(arrays.master) + i;
      f16* const weight = static_cast<f16*>(arrays.weight) + i;
      body(MasterAlone{master});
      for_lanes(0, count, [&](auto d, std::int64_t at) HWY_ATTR {
        store_weight(d, hn::LoadU(d, master + at), weight + at);
      });
      return;
    }
    case WeightFormat::kSplitBF16:
      return body(MasterSplit{static_cast<bf16*>(arrays.weight) + i,
                              static_cast<std::int16_t*>(arrays.master) + i});
    case WeightFormat::kMasterBF16: {
      bf16* const weight = static_cast<bf16*>(arrays.weight) + i;
      return body(MasterAndBF16{static_cast<float*>(arrays.master) + i, weight,
                                MasterAndBF16::aligned(weight)});
    }
    default:
      return body(MasterAlone{static_cast<float*>(arrays.master) + i});
  }
}

template <Block8Map kMap>
HWY_INLINE void decode_blocks(const void* moment, std::int64_t i, std::int64_t count, float* room) {
  const auto* const bytes = static_cast<const std::uint8_t*>(moment);
  constexpr auto kBlock = static_cast<std::int64_t>(kBlock8Elems);
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const Block8Place place = block8_place(static_cast<std::uint64_t>((i + at) / kBlock));
    float scale;
    std::memcpy(&scale, bytes + place.scale_bytes, sizeof scale);
    decode_block8<kMap>(scale, bytes + place.code_bytes, room + at);
  }
}

template <Block8Map kMap>
HWY_INLINE void encode_blocks(float* room, std::int64_t i, std::int64_t count, void* moment) {
  auto* const bytes = static_cast<std::uint8_t*>(moment);
  constexpr auto kBlock = static_cast<std::int64_t>(kBlock8Elems);
  // Zero the rest of a tensor's last block.
  std::fill(room + count, room + (count + kBlock - 1) / kBlock * kBlock, 0.0f);
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const Block8Place place = block8_place(static_cast<std::uint64_t>((i + at) / kBlock));
    const float scale = encode_block8<kMap>(room + at, bytes + place.code_bytes);
    std::memcpy(bytes + place.scale_bytes, &scale, sizeof scale);
  }
}

// Calls body(moment1, moment2) once, with accessors for the moments of elements [i, i + count), and
// stores 8-bit moments back afterwards. `key` is the model-wide index of element i (key_of). It
// selects the rounding noise of bf16 moments.
template <int kMoments, class Body>
HWY_INLINE void with_moments(const UpdateArrays& arrays, std::int64_t i, std::int64_t count,
                             std::uint64_t key, StageRoom& room, const Body& body) {
  const auto moment = [i](void* array, auto* like) {
    return array == nullptr ? nullptr : static_cast<decltype(like)>(array) + i;
  };
  if constexpr (kMoments == 0) {
    body(MomentF32{nullptr}, MomentF32{nullptr});
  } else if (arrays.moments == DType::kF32) {
    float* const like = nullptr;
    body(MomentF32{moment(arrays.moment1, like)}, MomentF32{moment(arrays.moment2, like)});
  } else if (arrays.moments == DType::kBF16) {
    const std::uint64_t skipped = key % kRoundingNoiseKeys;
    const std::uint64_t end = skipped + static_cast<std::uint64_t>(count);
    for (std::uint64_t at = 0; at < end; at += kRoundingNoiseKeys) {
      fill_noise(arrays.seed, arrays.step, key - skipped + at, room.noise[0] + at,
                 room.noise[1] + at);
    }
    bf16* const like = nullptr;
    body(MomentBF16{moment(arrays.moment1, like), room.noise[0] + skipped},
         MomentBF16{moment(arrays.moment2, like), room.noise[1] + skipped});
  } else {
    decode_blocks<Block8Map::kMoment1>(arrays.moment1, i, count, room.moment1);
    if constexpr (kMoments == 2) {
      decode_blocks<Block8Map::kMoment2>(arrays.moment2, i, count, room.moment2);
    }
    body(MomentF32{room.moment1}, MomentF32{room.moment2});
    encode_blocks<Block8Map::kMoment1>(room.moment1, i, count, arrays.moment1);
    if constexpr (kMoments == 2) {
      encode_blocks<Block8Map::kMoment2>(room.moment2, i, count, arrays.moment2);
    }
  }
}

// Whether all formats can stay in registers.
template <int kMoments>
HWY_INLINE bool in_registers(const UpdateArrays& arrays) {
  const bool half =
      arrays.grad_format == GradFormat::kF16 || arrays.grad_format == GradFormat::kF32ThroughF16;
  return !half && arrays.weight_format != WeightFormat::kMasterF16 &&
         (kMoments == 0 || arrays.moments == DType::kF32);
}

// Updates elements [begin, end) of the chunk, all of one segment, stage by stage.
template <class Rule>
HWY_INLINE void run_stages(const UpdateArrays& arrays, const Rule& rule,
                           const ParameterSegment& segment, std::int64_t begin, std::int64_t end) {
  StageRoom room;
  const std::int64_t stage = in_registers<Rule::kMoments>(arrays) ? end - begin : kStageElems;
  for (std::int64_t i = begin; i < end; i += stage) {
    const std::int64_t count = std::min(stage, end - i);
    const Ahead ahead = ahead_of(arrays, Rule::kMoments, i, &room);
    const std::uint64_t key = key_of(segment, i);
    with_grad(arrays, i, count, room.grad, [&](const auto& grad) HWY_ATTR {
      with_master(arrays, i, count, [&](const auto& master) HWY_ATTR {
        with_moments<Rule::kMoments>(arrays, i, count, key, room,
                                     [&](const auto& moment1, const auto& moment2) HWY_ATTR {
                                       run_rule(rule, grad, master, moment1, moment2, ahead, count);
                                     });
      });
    });
  }
}

// Whether all arrays have 16-bit elements, so that pairs_simd.hpp applies.
[[maybe_unused]] inline bool in_pairs(const UpdateArrays& arrays) {
  return arrays.grad_format == GradFormat::kBF16 &&
         arrays.weight_format == WeightFormat::kSplitBF16 && arrays.moments == DType::kBF16;
}

// A Rule has kMoments (0 to 2) and operator()(d, g, m, v, w), which returns the new w and changes
// its moments.
template <class Rule>
HWY_INLINE void update_range(const UpdateArrays& arrays, const Rule& rule,
                             const ParameterSegment& segment, std::int64_t begin,
                             std::int64_t end) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (Rule::kMoments >= 1) {
    if (in_pairs(arrays)) {
      // Pairs cover the keys in whole blocks of noise; the rest before and after runs in stages.
      const auto past = static_cast<std::int64_t>(key_of(segment, begin) % kRoundingNoiseKeys);
      const std::int64_t first = std::min(end, begin + (kPairsStep - past) % kPairsStep);
      const std::int64_t last = first + (end - first) / kPairsStep * kPairsStep;
      run_stages(arrays, rule, segment, begin, first);
      run_pairs(rule, pair_arrays(arrays, first), arrays.seed, arrays.step, key_of(segment, first),
                last - first);
      return run_stages(arrays, rule, segment, last, end);
    }
  }
#endif
  run_stages(arrays, rule, segment, begin, end);
  hwy::FlushStream();
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
