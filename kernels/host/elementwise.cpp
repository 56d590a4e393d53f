#include "kernels/host/elementwise.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/column_sums.hpp"
#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::host::HWY_NAMESPACE {

template <class T>
HWY_INLINE void column_sum_of(const T* x, T* out, std::int64_t rows, std::int64_t stride,
                              std::int64_t cols) {
  float totals[1][kTileCols];
  column_sums(rows, cols, totals,
              [&](auto d, std::int64_t row, std::int64_t c, auto* terms)
                  HWY_ATTR { terms[0] = load(d, x + row * stride + c); });
  for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
    store(d, hn::LoadU(d, totals[0] + c), out + c);
  });
}

// Columns [begin, begin + cols) of x [rows, stride].
void column_sum_tile(const void* x, void* out, std::int64_t rows, std::int64_t stride,
                     std::int64_t begin, std::int64_t cols, DType dtype) {
  if (dtype == DType::kBF16) {
    column_sum_of(static_cast<const bf16*>(x) + begin, static_cast<bf16*>(out) + begin, rows,
                  stride, cols);
  } else {
    column_sum_of(static_cast<const float*>(x) + begin, static_cast<float*>(out) + begin, rows,
                  stride, cols);
  }
}

template <class Grad>
HWY_INLINE void accumulate_of(float* accumulator, const Grad* grad, bool first, std::int64_t begin,
                              std::int64_t end) {
  if (first) {
    for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(load(d, grad + i), d, accumulator + i);
    });
    return;
  }
  for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, accumulator + i), load(d, grad + i)), d, accumulator + i);
  });
}

void accumulate_range(float* accumulator, const void* grad, DType grad_dtype, bool first,
                      std::int64_t begin, std::int64_t end) {
  if (grad_dtype == DType::kBF16) {
    accumulate_of(accumulator, static_cast<const bf16*>(grad), first, begin, end);
  } else {
    accumulate_of(accumulator, static_cast<const float*>(grad), first, begin, end);
  }
}

template <class T>
HWY_INLINE void fold_of(T* into, const T* from, std::int64_t begin, std::int64_t end) {
  for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
    store(d, hn::Add(load(d, into + i), load(d, from + i)), into + i);
  });
}

void fold_range(void* into, const void* from, DType dtype, std::int64_t begin, std::int64_t end) {
  if (dtype == DType::kBF16) {
    fold_of(static_cast<bf16*>(into), static_cast<const bf16*>(from), begin, end);
  } else {
    fold_of(static_cast<float*>(into), static_cast<const float*>(from), begin, end);
  }
}

// The block's sum over 16 virtual fp64 lanes (elementwise.hpp).
template <bool kRound, class T>
HWY_INLINE double squared_norm_of(const T* grad, std::int64_t elems) {
  constexpr std::int64_t kLanes = 16;
  // As many fp64 lanes as fp32 lanes in the half vector that is converted at a time.
  using DoubleTag = hn::CappedTag<double, 8>;
  using FloatTag = hn::Rebind<float, DoubleTag>;
  const DoubleTag doubles;
  const FloatTag floats;
  constexpr std::int64_t kStep = hn::MaxLanes(DoubleTag());
  hn::Vec<DoubleTag> totals[kLanes / kStep];
  for (auto& total : totals) total = hn::Zero(doubles);
  std::int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) {
    for (std::int64_t part = 0; part < kLanes / kStep; ++part) {
      auto narrow = load(floats, grad + i + part * kStep);
      if constexpr (kRound) narrow = through_bf16(floats, narrow);
      const auto value = hn::PromoteTo(doubles, narrow);
      totals[part] = hn::Add(totals[part], hn::Mul(value, value));
    }
  }
  double lanes[kLanes];
  for (std::int64_t part = 0; part < kLanes / kStep; ++part) {
    hn::StoreU(totals[part], doubles, lanes + part * kStep);
  }
  for (; i < elems; ++i) {
    auto narrow = load(OneTag(), grad + i);
    if constexpr (kRound) narrow = through_bf16(OneTag(), narrow);
    const double value = hn::GetLane(narrow);
    lanes[i % kLanes] += value * value;
  }
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

double squared_norm_block(const void* grad, DType dtype, bool round_to_bf16, std::int64_t begin,
                          std::int64_t end) {
  if (dtype == DType::kBF16) {
    return squared_norm_of<false>(static_cast<const bf16*>(grad) + begin, end - begin);
  }
  const float* const from = static_cast<const float*>(grad) + begin;
  return round_to_bf16 ? squared_norm_of<true>(from, end - begin)
                       : squared_norm_of<false>(from, end - begin);
}

void narrow_range(const float* in, bf16* out, bool weight_rounding, std::int64_t begin,
                  std::int64_t end) {
  if (weight_rounding) {
    for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
      store_weight(d, hn::LoadU(d, in + i), out + i);
    });
    return;
  }
  for_lanes(begin, end,
            [&](auto d, std::int64_t i) HWY_ATTR { store(d, hn::LoadU(d, in + i), out + i); });
}

void widen_range(const bf16* in, float* out, std::int64_t begin, std::int64_t end) {
  for_lanes(begin, end,
            [&](auto d, std::int64_t i) HWY_ATTR { hn::StoreU(load(d, in + i), d, out + i); });
}

}  // namespace sluice::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::host {
namespace {

HWY_EXPORT(column_sum_tile);
HWY_EXPORT(accumulate_range);
HWY_EXPORT(fold_range);
HWY_EXPORT(squared_norm_block);
HWY_EXPORT(narrow_range);
HWY_EXPORT(widen_range);

// 128 KiB of fp32: long enough to hide a task's cost, short enough to share out.
constexpr std::int64_t kPieceElems = 32768;
// Blocks are 4,096 elements (DESIGN section 7): a task takes a piece's worth.
constexpr std::int64_t kBlocksPerTask = 8;

void check_float(DType type) {
  SLUICE_CHECK(type == DType::kBF16 || type == DType::kF32);
}

}  // namespace

void column_sum(const Parallel& parallel, const void* x, void* out, std::int64_t rows,
                std::int64_t cols, DType dtype) {
  check_float(dtype);
  parallel.for_blocks(cols, kTileCols, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(column_sum_tile)(x, out, rows, cols, begin, end - begin, dtype);
  });
}

void accumulate(const Parallel& parallel, float* accumulator, const void* grad, DType grad_dtype,
                bool first, std::int64_t elems) {
  check_float(grad_dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(accumulate_range)(accumulator, grad, grad_dtype, first, begin, end);
  });
}

void fold(const Parallel& parallel, void* into, const void* from, DType dtype, std::int64_t elems) {
  check_float(dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fold_range)(into, from, dtype, begin, end);
  });
}

void squared_norm_blocks(const Parallel& parallel, const void* grad, DType dtype,
                         bool round_to_bf16, std::span<const Kernels::Block> blocks,
                         double* partial) {
  check_float(dtype);
  const auto count = static_cast<std::int64_t>(blocks.size());
  parallel.for_blocks(count, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Kernels::Block& block = blocks[static_cast<std::size_t>(i)];
      partial[i] = HWY_DYNAMIC_DISPATCH(squared_norm_block)(grad, dtype, round_to_bf16, block.begin,
                                                            block.end);
    }
  });
}

void cast(const Parallel& parallel, const void* in, DType in_dtype, void* out, DType out_dtype,
          bool weight_rounding, std::int64_t elems) {
  check_float(in_dtype);
  check_float(out_dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    if (in_dtype == out_dtype) {
      const std::size_t bytes = dtype_bytes(in_dtype);
      std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(begin) * bytes,
                  static_cast<const std::byte*>(in) + static_cast<std::size_t>(begin) * bytes,
                  static_cast<std::size_t>(end - begin) * bytes);
    } else if (in_dtype == DType::kF32) {
      HWY_DYNAMIC_DISPATCH(narrow_range)
      (static_cast<const float*>(in), static_cast<bf16*>(out), weight_rounding, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(widen_range)
      (static_cast<const bf16*>(in), static_cast<float*>(out), begin, end);
    }
  });
}

}  // namespace sluice::host
#endif  // HWY_ONCE
