// Column sums, accumulation, additions, norms and casts (elementwise.hpp has the contracts).
//
// Each kernel is compiled once per instruction set and chosen at run time. Sums use a fixed
// number of virtual lanes, independent of the vector width. All instruction sets give the same
// bits.
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
namespace sluice::kernels::host::HWY_NAMESPACE {

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
  as_stored(dtype, [&](auto as) HWY_ATTR {
    column_sum_of(as.in(x) + begin, as.out(out) + begin, rows, stride, cols);
  });
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
  as_stored(grad_dtype,
            [&](auto as) HWY_ATTR { accumulate_of(accumulator, as.in(grad), first, begin, end); });
}

template <class T>
HWY_INLINE void fold_of(T* into, const T* from, std::int64_t begin, std::int64_t end) {
  for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
    store(d, hn::Add(load(d, into + i), load(d, from + i)), into + i);
  });
}

void fold_range(void* into, const void* from, DType dtype, std::int64_t begin, std::int64_t end) {
  as_stored(dtype, [&](auto as) HWY_ATTR { fold_of(as.out(into), as.in(from), begin, end); });
}

// Sums squares over 16 virtual fp64 lanes (elementwise.hpp); elements are first rounded to `round`.
template <class Round, class T>
HWY_INLINE double squared_norm_of(Round round, const T* grad, std::int64_t elems) {
  constexpr std::int64_t kLanes = 16;
  // The fp64 lanes of one vector, and a vector with as many fp32 lanes to convert from.
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
      const auto narrow = through(floats, load(floats, grad + i + part * kStep), round);
      const auto value = hn::PromoteTo(doubles, narrow);
      totals[part] = hn::Add(totals[part], hn::Mul(value, value));
    }
  }
  double lanes[kLanes];
  for (std::int64_t part = 0; part < kLanes / kStep; ++part) {
    hn::StoreU(totals[part], doubles, lanes + part * kStep);
  }
  for (; i < elems; ++i) {
    const double value = hn::GetLane(through(OneTag(), load(OneTag(), grad + i), round));
    lanes[i % kLanes] += value * value;
  }
  // Add by halves, in the same order for every vector width.
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

double squared_norm_block(const void* grad, DType dtype, DType round_to, std::int64_t begin,
                          std::int64_t end) {
  double sum = 0;
  if (dtype == DType::kF32) {
    as_stored(round_to, [&](auto round) HWY_ATTR {
      sum = squared_norm_of(round, static_cast<const float*>(grad) + begin, end - begin);
    });
  } else {
    as_stored(dtype, [&](auto as) HWY_ATTR {
      sum = squared_norm_of(Stored<float>(), as.in(grad) + begin, end - begin);
    });
  }
  return sum;
}

void cast_range(const void* in, DType in_dtype, void* out, DType out_dtype, bool weight_rounding,
                std::int64_t begin, std::int64_t end) {
  as_stored(in_dtype, [&](auto from) HWY_ATTR {
    as_stored(out_dtype, [&](auto to) HWY_ATTR {
      const auto* const source = from.in(in);
      auto* const target = to.out(out);
      if (weight_rounding) {
        for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
          store_weight(d, load(d, source + i), target + i);
        });
        return;
      }
      for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
        store(d, load(d, source + i), target + i);
      });
    });
  });
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(column_sum_tile);
HWY_EXPORT(accumulate_range);
HWY_EXPORT(fold_range);
HWY_EXPORT(squared_norm_block);
HWY_EXPORT(cast_range);

// 128 KiB of fp32: long enough to hide the cost of a task, short enough to balance threads.
constexpr std::int64_t kPieceElems = 32768;
// Blocks have 4,096 elements (docs/design/arithmetic.md); a task takes one piece's worth.
constexpr std::int64_t kBlocksPerTask = 8;

void check_float(DType type) {
  SLUICE_CHECK(is_act_dtype(type));
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
  const ElementMemory near{accumulator, sizeof(float)};
  parallel.for_blocks_near(near, elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(accumulate_range)(accumulator, grad, grad_dtype, first, begin, end);
  });
}

void fold(const Parallel& parallel, void* into, const void* from, DType dtype, std::int64_t elems) {
  check_float(dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fold_range)(into, from, dtype, begin, end);
  });
}

void squared_norm_blocks(const Parallel& parallel, const void* grad, DType dtype, DType round_to,
                         std::span<const Kernels::Block> blocks, double* partial) {
  check_float(dtype);
  check_float(round_to);
  const auto count = static_cast<std::int64_t>(blocks.size());
  parallel.for_blocks(count, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Kernels::Block& block = blocks[static_cast<std::size_t>(i)];
      partial[i] =
          HWY_DYNAMIC_DISPATCH(squared_norm_block)(grad, dtype, round_to, block.begin, block.end);
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
    } else {
      HWY_DYNAMIC_DISPATCH(cast_range)(in, in_dtype, out, out_dtype, weight_rounding, begin, end);
    }
  });
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
