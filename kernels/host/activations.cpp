// Elementwise layers, one range or a few rows per task.
//
// Each kernel is compiled once per instruction set (Highway foreach_target) and chosen at run time.
// GELU uses its tanh approximation, written with the logistic function of sigmoid.hpp, which gives
// the same bits everywhere. The rotary embedding evaluates cos and sin in fp64 once per pair and
// task, then advances the angle by a rotation per position; each result is rounded to fp32.
#include "kernels/host/activations.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/activations.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/sigmoid.hpp"
#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

template <class T>
HWY_INLINE void add_of(const T* a, const T* b, T* out, std::int64_t begin, std::int64_t end) {
  for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
    store(d, hn::Add(load(d, a + i), load(d, b + i)), out + i);
  });
}

void add_range(const void* a, const void* b, void* out, std::int64_t begin, std::int64_t end,
               DType dtype) {
  as_stored(dtype, [&](auto as) HWY_ATTR { add_of(as.in(a), as.in(b), as.out(out), begin, end); });
}

// --- GELU: x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)

constexpr float kTwoRootTwoOverPi = 1.5957691216f;
constexpr float kCubic = 0.044715f;

// Beyond +-16 the sigmoid is 0 or 1 to the last bit. Clamping there keeps x^3 finite.
template <class D>
HWY_INLINE hn::Vec<D> clamp16(D d, hn::Vec<D> x) {
  return hn::Max(hn::Min(x, hn::Set(d, 16.0f)), hn::Set(d, -16.0f));
}

template <class D>
HWY_INLINE Sigmoid<D> gelu_sigmoid(D d, hn::Vec<D> x) {
  const auto cubic = hn::Mul(hn::Mul(hn::Set(d, kCubic), hn::Mul(x, x)), x);
  return sigmoid(d, hn::Mul(hn::Set(d, kTwoRootTwoOverPi), hn::Add(x, cubic)));
}

template <class T>
HWY_INLINE void gelu_forward_of(const T* x, T* y, std::int64_t begin, std::int64_t end) {
  for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto value = load(d, x + i);
    store(d, hn::Mul(value, gelu_sigmoid(d, clamp16(d, value)).value), y + i);
  });
}

void gelu_forward_range(const void* x, void* y, std::int64_t begin, std::int64_t end, DType dtype) {
  as_stored(dtype, [&](auto as) HWY_ATTR { gelu_forward_of(as.in(x), as.out(y), begin, end); });
}

// d/dx x s(2u) = s + x s (1 - s) 2u', 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
template <class T>
HWY_INLINE void gelu_backward_of(const T* dy, const T* x, T* dx, std::int64_t begin,
                                 std::int64_t end) {
  for_lanes(begin, end, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto value = load(d, x + i);
    const auto near = clamp16(d, value);
    const auto s = gelu_sigmoid(d, near);
    const auto slope =
        hn::Mul(hn::Set(d, kTwoRootTwoOverPi),
                hn::Add(hn::Set(d, 1.0f), hn::Mul(hn::Set(d, 3.0f * kCubic), hn::Mul(near, near))));
    const auto bend = hn::Mul(hn::Mul(near, hn::Mul(s.value, s.complement)), slope);
    // value - value is 0, except that it is NaN for NaN and infinity, which the clamp has hidden.
    const auto poison = hn::Sub(value, value);
    const auto gradient = hn::Add(hn::Add(s.value, bend), poison);
    store(d, hn::Mul(load(d, dy + i), gradient), dx + i);
  });
}

void gelu_backward_range(const void* dy, const void* x, void* dx, std::int64_t begin,
                         std::int64_t end, DType dtype) {
  as_stored(dtype, [&](auto as)
                       HWY_ATTR { gelu_backward_of(as.in(dy), as.in(x), as.out(dx), begin, end); });
}

// --- SwiGLU: silu(g) up, silu(g) = g s(g); d silu/dg = s + g s (1 - s)

template <class T>
HWY_INLINE void swiglu_forward_of(const T* x, T* y, std::int64_t first, std::int64_t last,
                                  std::int64_t cols) {
  for (std::int64_t row = first; row < last; ++row) {
    const T* const gate = x + row * 2 * cols;
    const T* const up = gate + cols;
    for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto g = load(d, gate + c);
      const auto silu = hn::Mul(g, sigmoid(d, g).value);
      store(d, hn::Mul(silu, load(d, up + c)), y + row * cols + c);
    });
  }
}

void swiglu_forward_rows(const void* x, void* y, std::int64_t first, std::int64_t last,
                         std::int64_t cols, DType dtype) {
  as_stored(dtype,
            [&](auto as) HWY_ATTR { swiglu_forward_of(as.in(x), as.out(y), first, last, cols); });
}

template <class T>
HWY_INLINE void swiglu_backward_of(const T* dy, const T* x, T* dx, std::int64_t first,
                                   std::int64_t last, std::int64_t cols) {
  for (std::int64_t row = first; row < last; ++row) {
    const T* const gate = x + row * 2 * cols;
    T* const dgate = dx + row * 2 * cols;
    for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto g = load(d, gate + c);
      const auto up = load(d, gate + cols + c);
      const auto dout = load(d, dy + row * cols + c);
      const auto s = sigmoid(d, g);
      const auto silu = hn::Mul(g, s.value);
      const auto slope = hn::Add(s.value, hn::Mul(silu, s.complement));
      store(d, hn::Mul(hn::Mul(dout, up), slope), dgate + c);
      store(d, hn::Mul(dout, silu), dgate + cols + c);
    });
  }
}

void swiglu_backward_rows(const void* dy, const void* x, void* dx, std::int64_t first,
                          std::int64_t last, std::int64_t cols, DType dtype) {
  as_stored(dtype, [&](auto as) HWY_ATTR {
    swiglu_backward_of(as.in(dy), as.in(x), as.out(dx), first, last, cols);
  });
}

// --- rotary embedding

// Rotates the pairs (x[i], x[i + half]), i in [0, count), of `heads` heads of 2*half elements.
template <class T>
HWY_INLINE void rotate_of(T* x, std::int64_t heads, std::int64_t half, const float* cosines,
                          const float* sines, std::int64_t count) {
  for (std::int64_t head = 0; head < heads; ++head) {
    T* const low = x + head * 2 * half;
    T* const high = low + half;
    for_lanes(0, count, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto cosine = hn::LoadU(d, cosines + i);
      const auto sine = hn::LoadU(d, sines + i);
      const auto a = load(d, low + i);
      const auto b = load(d, high + i);
      store(d, hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), low + i);
      store(d, hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine)), high + i);
    });
  }
}

// offset: index in x of the first pair's lower element.
void rotate_heads(void* x, std::int64_t offset, std::int64_t heads, std::int64_t half,
                  const float* cosines, const float* sines, std::int64_t count, DType dtype) {
  as_stored(dtype, [&](auto as) HWY_ATTR {
    rotate_of(as.out(x) + offset, heads, half, cosines, sines, count);
  });
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(add_range);
HWY_EXPORT(gelu_forward_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(swiglu_forward_rows);
HWY_EXPORT(swiglu_backward_rows);
HWY_EXPORT(rotate_heads);

constexpr std::int64_t kPieceElems = 16384;
// A task of rope covers this many positions of one sequence, and this many pairs at a time.
constexpr std::int64_t kRopePositions = 16;
constexpr std::int64_t kRopePairs = 64;

void check_float(DType type) {
  SLUICE_CHECK(is_act_dtype(type));
}

std::int64_t rows_per_piece(std::int64_t cols) {
  return std::max<std::int64_t>(1, kPieceElems / std::max<std::int64_t>(1, cols));
}

// Rotates rows [first, last) of one sequence; its qkv rows start at element `base_offset`.
void rope_piece(const AttentionShape& shape, float base, bool inverse, std::int64_t base_offset,
                std::int64_t first, std::int64_t last, void* qkv) {
  const std::int64_t half = shape.head_dim / 2;
  const std::int64_t rotated = shape.heads + shape.kv_heads;
  const std::int64_t stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  for (std::int64_t begin = 0; begin < half; begin += kRopePairs) {
    const std::int64_t count = std::min(kRopePairs, half - begin);
    // One evaluation for each pair, then a rotation by one position's angle in fp64. After
    // kRopePositions rotations the result is exact to about 1e-15.
    double cosine[kRopePairs], sine[kRopePairs], step_cosine[kRopePairs], step_sine[kRopePairs];
    for (std::int64_t i = 0; i < count; ++i) {
      const double exponent = -static_cast<double>(begin + i) / static_cast<double>(half);
      const double angle = std::pow(static_cast<double>(base), exponent);
      cosine[i] = std::cos(static_cast<double>(shape.first_position + first) * angle);
      sine[i] = std::sin(static_cast<double>(shape.first_position + first) * angle);
      step_cosine[i] = std::cos(angle);
      step_sine[i] = std::sin(angle);
    }
    for (std::int64_t row = first; row < last; ++row) {
      float cosines[kRopePairs], sines[kRopePairs];
      for (std::int64_t i = 0; i < count; ++i) {
        cosines[i] = static_cast<float>(cosine[i]);
        sines[i] = static_cast<float>(inverse ? -sine[i] : sine[i]);
        const double next = cosine[i] * step_cosine[i] - sine[i] * step_sine[i];
        sine[i] = sine[i] * step_cosine[i] + cosine[i] * step_sine[i];
        cosine[i] = next;
      }
      HWY_DYNAMIC_DISPATCH(rotate_heads)
      (qkv, base_offset + row * stride + begin, rotated, half, cosines, sines, count, shape.dtype);
    }
  }
}

}  // namespace

void add(const Parallel& parallel, const void* a, const void* b, void* out, std::int64_t elems,
         DType dtype) {
  check_float(dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)(a, b, out, begin, end, dtype);
  });
}

void gelu_forward(const Parallel& parallel, const void* x, void* y, std::int64_t elems,
                  DType dtype) {
  check_float(dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_forward_range)(x, y, begin, end, dtype);
  });
}

void gelu_backward(const Parallel& parallel, const void* dy, const void* x, void* dx,
                   std::int64_t elems, DType dtype) {
  check_float(dtype);
  parallel.for_blocks(elems, kPieceElems, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)(dy, x, dx, begin, end, dtype);
  });
}

void swiglu_forward(const Parallel& parallel, const void* x, void* y, std::int64_t rows,
                    std::int64_t cols, DType dtype) {
  check_float(dtype);
  parallel.for_blocks(rows, rows_per_piece(cols), [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(swiglu_forward_rows)(x, y, first, last, cols, dtype);
  });
}

void swiglu_backward(const Parallel& parallel, const void* dy, const void* x, void* dx,
                     std::int64_t rows, std::int64_t cols, DType dtype) {
  check_float(dtype);
  parallel.for_blocks(rows, rows_per_piece(cols), [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_rows)(dy, x, dx, first, last, cols, dtype);
  });
}

void rope(const Parallel& parallel, const AttentionShape& shape, float base, bool inverse,
          void* qkv) {
  check_float(shape.dtype);
  SLUICE_CHECK_MSG(shape.head_dim % 2 == 0, "rotary embedding needs an even head_dim");
  const std::int64_t pieces = (shape.time + kRopePositions - 1) / kRopePositions;
  const std::int64_t sequence = shape.time * (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  parallel.for_each(shape.batch * pieces, [&](std::int64_t task) {
    const std::int64_t first = task % pieces * kRopePositions;
    rope_piece(shape, base, inverse, task / pieces * sequence, first,
               std::min(shape.time, first + kRopePositions), qkv);
  });
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
