// Elementwise layers on the GPU.
//
// GELU uses the map of map.cuh. SwiGLU has a thread per pack of columns, with rows along the grid's
// y axis. The rotary embedding has a block per position, which computes the fp64 angles once and
// applies them to all heads of several sequences. Arrays that are not aligned to 16 bytes use
// kernels with single elements.
#include "kernels/cuda/activations.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sigmoid.cuh"

namespace sluice::kernels::cuda {
namespace {

// --- GELU: x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)

constexpr float kTwoRootTwoOverPi = 1.5957691216f;
constexpr float kCubic = 0.044715f;

// Beyond +-16 the sigmoid is 0 or 1 to the last bit. Clamping there keeps x^3 finite. A NaN becomes
// a number here; callers restore it.
__device__ __forceinline__ float clamp16(float x) {
  return fmaxf(fminf(x, 16.0f), -16.0f);
}

template <class T>
__device__ __forceinline__ Sigmoid gelu_sigmoid(float x) {
  return sigmoid<T>(kTwoRootTwoOverPi * (x + kCubic * x * x * x));
}

template <class T>
struct GeluForward {
  __device__ float operator()(const float (&x)[1]) const {
    return x[0] * gelu_sigmoid<T>(clamp16(x[0])).value;
  }
};

// d/dx x s(2u) = s + x s (1 - s) 2u', 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2). Inputs: dy, x.
template <class T>
struct GeluBackward {
  __device__ float operator()(const float (&in)[2]) const {
    const float near = clamp16(in[1]);
    const Sigmoid s = gelu_sigmoid<T>(near);
    const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * near * near);
    // x - x is 0, except that it is NaN for NaN and infinity, which the clamp has hidden.
    const float poison = __fsub_rn(in[1], in[1]);
    return in[0] * (s.value + near * (s.value * s.complement) * slope + poison);
  }
};

// --- SwiGLU: silu(g) up, silu(g) = g s(g); d silu/dg = s + g s (1 - s)

constexpr int kThreads = 256;

template <class T, int kElems>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const std::int64_t c = grid_thread() * kElems;
  if (c >= cols) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const T* const gate = x + row * 2 * cols + c;
    const Pack<T, kElems> gates = load_pack<T, kElems>(gate);
    const Pack<T, kElems> ups = load_pack<T, kElems>(gate + cols);
    Pack<T, kElems> out;
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      const float g = load_float(gates.values[e]);
      out.values[e] = from_float<T>(g * sigmoid<T>(g).value * load_float(ups.values[e]));
    }
    store_pack(y + row * cols + c, out);
  }
}

template <class T, int kElems>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const T* dy, const T* x, T* dx, std::int64_t rows, std::int64_t cols) {
  const std::int64_t c = grid_thread() * kElems;
  if (c >= cols) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::int64_t gate = row * 2 * cols + c;
    const Pack<T, kElems> gates = load_pack<T, kElems>(x + gate);
    const Pack<T, kElems> ups = load_pack<T, kElems>(x + gate + cols);
    const Pack<T, kElems> douts = load_pack<T, kElems>(dy + row * cols + c);
    Pack<T, kElems> dgate, dup;
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      const float g = load_float(gates.values[e]);
      const float dout = load_float(douts.values[e]);
      const Sigmoid s = sigmoid<T>(g);
      const float silu = g * s.value;
      const float slope = s.value + silu * s.complement;
      dgate.values[e] = from_float<T>(dout * load_float(ups.values[e]) * slope);
      dup.values[e] = from_float<T>(dout * silu);
    }
    store_pack(dx + gate, dgate);
    store_pack(dx + gate + cols, dup);
  }
}

// Columns along x, rows along y.
dim3 grid_of_rows(std::int64_t rows, std::int64_t packs) {
  const std::int64_t across = (packs + kThreads - 1) / kThreads;
  SLUICE_CHECK(across <= kMaxGridX);
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(std::min(rows, kMaxGridYZ)));
}

// --- rotary embedding

struct RopeShape {
  std::int64_t batch, time, rotated_heads, half, row_elems, first_position;
};

// A block handles one position: it computes the cosines and sines of the pairs once, then rotates
// all heads of the rows of several sequences (blockIdx.y, with strides).
template <class T, int kElems>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* qkv, RopeShape shape, double base, bool inverse) {
  float* const cosines = dynamic_shared<float>();
  float* const sines = cosines + shape.half;
  const std::int64_t position = blockIdx.x;  // after the first
  for (std::int64_t i = threadIdx.x; i < shape.half; i += blockDim.x) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(shape.half);
    const double angle = static_cast<double>(shape.first_position + position) * pow(base, exponent);
    cosines[i] = static_cast<float>(cos(angle));
    sines[i] = static_cast<float>(inverse ? -sin(angle) : sin(angle));
  }
  __syncthreads();
  const std::int64_t packs = shape.half / kElems;
  for (std::int64_t sequence = blockIdx.y; sequence < shape.batch; sequence += gridDim.y) {
    T* const row = qkv + (sequence * shape.time + position) * shape.row_elems;
    for (std::int64_t i = threadIdx.x; i < shape.rotated_heads * packs; i += blockDim.x) {
      const std::int64_t first = i % packs * kElems;
      T* const low = row + i / packs * 2 * shape.half + first;
      Pack<T, kElems> a = load_pack<T, kElems>(low);
      Pack<T, kElems> b = load_pack<T, kElems>(low + shape.half);
#pragma unroll
      for (int e = 0; e < kElems; ++e) {
        const float x = load_float(a.values[e]), y = load_float(b.values[e]);
        const float cosine = cosines[first + e], sine = sines[first + e];
        // These are the operations of the host's kernel.
        a.values[e] = from_float<T>(__fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine)));
        b.values[e] = from_float<T>(__fadd_rn(__fmul_rn(y, cosine), __fmul_rn(x, sine)));
      }
      store_pack(low, a);
      store_pack(low + shape.half, b);
    }
  }
}

}  // namespace

void gelu_forward(StreamHandle stream, const void* x, void* y, std::int64_t elems, DType dtype) {
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    map<T>(stream, y, elems, GeluForward<T>(), x);
  });
}

void gelu_backward(StreamHandle stream, const void* dy, const void* x, void* dx, std::int64_t elems,
                   DType dtype) {
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    map<T>(stream, dx, elems, GeluBackward<T>(), dy, x);
  });
}

void swiglu_forward(StreamHandle stream, const void* x, void* y, std::int64_t rows,
                    std::int64_t cols, DType dtype) {
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (rows <= 0 || cols <= 0) return;
    const bool aligned = all_aligned_to_16(x, y, cols * sizeof(T));
    launch(stream, grid_of_rows(rows, aligned ? cols / kPackElems<T> : cols), kThreads, 0,
           aligned ? &swiglu_forward_kernel<T, kPackElems<T>> : &swiglu_forward_kernel<T, 1>,
           static_cast<const T*>(x), static_cast<T*>(y), rows, cols);
  });
}

void swiglu_backward(StreamHandle stream, const void* dy, const void* x, void* dx,
                     std::int64_t rows, std::int64_t cols, DType dtype) {
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (rows <= 0 || cols <= 0) return;
    const bool aligned = all_aligned_to_16(dy, x, dx, cols * sizeof(T));
    launch(stream, grid_of_rows(rows, aligned ? cols / kPackElems<T> : cols), kThreads, 0,
           aligned ? &swiglu_backward_kernel<T, kPackElems<T>> : &swiglu_backward_kernel<T, 1>,
           static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<T*>(dx), rows, cols);
  });
}

void rope(StreamHandle stream, const AttentionShape& shape, float base, bool inverse, void* qkv) {
  SLUICE_CHECK_MSG(shape.head_dim % 2 == 0, "rotary embedding needs an even head_dim");
  SLUICE_CHECK(shape.time <= kMaxGridX);
  with_act_type(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (shape.batch == 0 || shape.time == 0) return;
    const RopeShape rows{shape.batch,
                         shape.time,
                         shape.heads + shape.kv_heads,
                         shape.head_dim / 2,
                         (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                         shape.first_position};
    const bool aligned = all_aligned_to_16(qkv, rows.half * sizeof(T));
    // Enough blocks to fill the machine twice; more blocks would only compute angles again.
    const std::int64_t wanted = 2 * std::int64_t{grid_stride_blocks(kMaxGridX, kThreads)};
    const std::int64_t sequences =
        std::clamp<std::int64_t>(wanted / shape.time, 1, std::min(shape.batch, kMaxGridYZ));
    launch(stream, dim3(static_cast<unsigned>(shape.time), static_cast<unsigned>(sequences)),
           kThreads, static_cast<std::size_t>(rows.half) * 2 * sizeof(float),
           aligned ? &rope_kernel<T, kPackElems<T>> : &rope_kernel<T, 1>, static_cast<T*>(qkv),
           rows, static_cast<double>(base), inverse);
  });
}

}  // namespace sluice::kernels::cuda
