// A row (or a part of one, at most a tile's 1,024 columns) of what an update reads and writes, as
// fp32 in a buffer that stays in the nearest cache: rules that look at whole tensors are written
// once, for fp32, whatever the formats in memory. Included once for each instruction set, as
// simd.hpp.
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_CHUNK_ROWS) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_CHUNK_ROWS
#undef SLUICE_KERNELS_HOST_OPTIMIZER_CHUNK_ROWS
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_CHUNK_ROWS
#endif

#include "kernels/host/simd.hpp"
#include "kernels/optimizer.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::host::HWY_NAMESPACE {

// to[i] = round(grad[at + i]) * scale.
template <bool kRound, class Grad>
HWY_INLINE void load_gradient_of(const Grad* grad, float scale, std::int64_t count, float* to) {
  for_lanes(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    auto g = load(d, grad + i);
    if constexpr (kRound) g = through_bf16(d, g);
    hn::StoreU(hn::Mul(g, hn::Set(d, scale)), d, to + i);
  });
}

HWY_INLINE void load_gradient(const UpdateBuffers& buffers, float scale, std::int64_t at,
                              std::int64_t count, float* to) {
  if (buffers.grad_dtype == DType::kBF16) {
    load_gradient_of<false>(static_cast<const bf16*>(buffers.grad) + at, scale, count, to);
  } else if (buffers.round_grad_to == DType::kBF16) {
    load_gradient_of<true>(static_cast<const float*>(buffers.grad) + at, scale, count, to);
  } else {
    load_gradient_of<false>(static_cast<const float*>(buffers.grad) + at, scale, count, to);
  }
}

HWY_INLINE float* master_of(const UpdateBuffers& buffers) {
  return static_cast<float*>(buffers.master != nullptr ? buffers.master : buffers.weight);
}

// The master in fp32: where it lies, or decoded into `room`.
HWY_INLINE const float* load_master(const UpdateBuffers& buffers, std::int64_t at, std::int64_t,
                                    float*) {
  return master_of(buffers) + at;
}

// Stores the new master (in place where `from` is it) and the weight rounded from it.
HWY_INLINE void store_master(const UpdateBuffers& buffers, const float* from, std::int64_t at,
                             std::int64_t count) {
  float* const master = master_of(buffers) + at;
  auto* const weight =
      buffers.master != nullptr ? static_cast<bf16*>(buffers.weight) + at : nullptr;
  for_lanes(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto w = hn::LoadU(d, from + i);
    hn::StoreU(w, d, master + i);
    if (weight != nullptr) store_weight(d, w, weight + i);
  });
}

// The fp32 sum of squares of `count` numbers, in lanes.
HWY_INLINE float squares_of(const float* numbers, std::int64_t count) {
  float sum[1];
  lane_sums(count, sum, [&](auto d, std::int64_t i, auto* terms) HWY_ATTR {
    const auto value = hn::LoadU(d, numbers + i);
    terms[0] = hn::Mul(value, value);
  });
  return sum[0];
}

}  // namespace sluice::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
