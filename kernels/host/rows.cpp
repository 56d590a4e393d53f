// Rows and blocks for GEMM, attention and head (rows.hpp has the contracts).
//
// Each function is compiled once per instruction set and chosen at run time. Sums use 16 virtual
// lanes (lane_sums of simd.hpp), so the vector width does not change a bit. Maxima need no order.
#include "kernels/host/rows.hpp"

#include "base/error.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: compiled once per target.
#include <hwy/contrib/math/math-inl.h>

#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Highway's Exp returns 0 for NaN, but a NaN score must stay visible.
template <class D>
HWY_INLINE hn::Vec<D> exp_or_nan(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

void widen_rows(const void* from, DType dtype, std::int64_t from_stride, std::int64_t rows,
                std::int64_t cols, float* to, std::int64_t to_stride) {
  as_stored(dtype, [&](auto as) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* const in = as.in(from) + r * from_stride;
      float* const out = to + r * to_stride;
      for_lanes(0, cols,
                [&](auto d, std::int64_t i) HWY_ATTR { store(d, load(d, in + i), out + i); });
    }
  });
}

template <class To, class Bias>
HWY_INLINE void store_rows_as(const StoreBlock& block) {
  const auto* const bias = static_cast<const Bias*>(block.bias);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const float* const in = block.from + r * block.from_stride;
    To* const out = static_cast<To*>(block.to) + r * block.to_stride;
    const float factor = block.factor != nullptr ? block.factor[r] : 1.0f;
    for_lanes(0, block.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      auto value = hn::Mul(load(d, in + i), hn::Set(d, factor));
      if (bias != nullptr) value = hn::Add(value, load(d, bias + i));
      store(d, value, out + i);
    });
  }
}

void store_rows(const StoreBlock& block) {
  as_stored(block.to_dtype, [&](auto to) HWY_ATTR {
    as_stored(block.bias_dtype, [&](auto bias) HWY_ATTR {
      store_rows_as<typename decltype(to)::type, typename decltype(bias)::type>(block);
    });
  });
}

float max_of(const float* row, std::int64_t count) {
  const WideTag wide;
  const auto step = static_cast<std::int64_t>(hn::Lanes(wide));
  auto largest = hn::Set(wide, row[0]);
  auto nan = hn::IsNaN(largest);
  std::int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto value = hn::LoadU(wide, row + i);
    nan = hn::Or(nan, hn::IsNaN(value));
    largest = hn::Max(largest, value);
  }
  if (!hn::AllFalse(wide, nan)) return hn::GetLane(hn::NaN(wide));
  float result = hn::GetLane(hn::MaxOfLanes(wide, largest));
  for (; i < count; ++i) {
    if (!(row[i] <= result)) result = row[i];  // also if row[i] is NaN, which then stays
    if (result != result) return result;
  }
  return result;
}

float exp_in_place(float* row, std::int64_t count, float scale, float shift) {
  float sums[1];
  lane_sums<1>(count, sums, [&](auto d, std::int64_t i, auto* out) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, row + i), hn::Set(d, scale));
    out[0] = exp_or_nan(d, hn::Sub(scaled, hn::Set(d, shift)));
    hn::StoreU(out[0], d, row + i);
  });
  return sums[0];
}

float exp_sum(const float* row, std::int64_t count, float scale, float shift) {
  float sums[1];
  lane_sums<1>(count, sums, [&](auto d, std::int64_t i, auto* out) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, row + i), hn::Set(d, scale));
    out[0] = exp_or_nan(d, hn::Sub(scaled, hn::Set(d, shift)));
  });
  return sums[0];
}

void scale(float* row, std::int64_t count, float factor) {
  for_lanes(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
  });
}

float dot(const float* a, const float* b, std::int64_t count) {
  float sums[1];
  lane_sums<1>(count, sums, [&](auto d, std::int64_t i, auto* out) HWY_ATTR {
    out[0] = hn::Mul(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
  });
  return sums[0];
}

void softmax_grad(const float* probability, float* grad, std::int64_t count, float delta,
                  float factor) {
  for_lanes(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, grad + i), hn::Set(d, delta));
    const auto value = hn::Mul(hn::LoadU(d, probability + i), centred);
    hn::StoreU(hn::Mul(value, hn::Set(d, factor)), d, grad + i);
  });
}

void narrow_in_place(float* row, std::int64_t count) {
  // Each vector is loaded before its bf16 numbers overwrite the first half of the data read so far.
  auto* const out = reinterpret_cast<bf16*>(row);
  for_lanes(0, count,
            [&](auto d, std::int64_t i) HWY_ATTR { store(d, hn::LoadU(d, row + i), out + i); });
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {

HWY_EXPORT(widen_rows);
HWY_EXPORT(store_rows);
HWY_EXPORT(max_of);
HWY_EXPORT(exp_in_place);
HWY_EXPORT(exp_sum);
HWY_EXPORT(scale);
HWY_EXPORT(dot);
HWY_EXPORT(softmax_grad);
HWY_EXPORT(narrow_in_place);

void widen_block(const void* from, DType dtype, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t cols, float* to, std::int64_t to_stride) {
  HWY_DYNAMIC_DISPATCH(widen_rows)(from, dtype, from_stride, rows, cols, to, to_stride);
}

void store_block(const StoreBlock& block) {
  HWY_DYNAMIC_DISPATCH(store_rows)(block);
}

float row_max(const float* row, std::int64_t count) {
  SLUICE_CHECK(count > 0);
  return HWY_DYNAMIC_DISPATCH(max_of)(row, count);
}

float exp_row(float* row, std::int64_t count, float factor, float shift) {
  return HWY_DYNAMIC_DISPATCH(exp_in_place)(row, count, factor, shift);
}

float sum_exp_row(const float* row, std::int64_t count, float factor, float shift) {
  return HWY_DYNAMIC_DISPATCH(exp_sum)(row, count, factor, shift);
}

void scale_row(float* row, std::int64_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(scale)(row, count, factor);
}

float dot_row(const float* a, const float* b, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(dot)(a, b, count);
}

void softmax_grad_row(const float* probability, float* grad, std::int64_t count, float delta,
                      float factor) {
  HWY_DYNAMIC_DISPATCH(softmax_grad)(probability, grad, count, delta, factor);
}

void narrow_row_in_place(float* row, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(narrow_in_place)(row, count);
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
