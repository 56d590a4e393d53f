#include "kernels/cuda/elementwise.hpp"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
// 16-byte accesses of a thread that are under way at once: 3 arrays, 2,048 threads and 4 each are
// 256 KiB per multiprocessor, several times what hides the memory's latency.
constexpr int kPacksAtOnce = 4;

// Both ends of [data, data + bytes) may be odd; what lies between is written 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    zero_kernel(std::uint8_t* data, std::int64_t head, std::int64_t packs, std::int64_t tail) {
  const std::int64_t thread = grid_thread();
  uint4* const middle = reinterpret_cast<uint4*>(data + head);
  for (std::int64_t i = thread; i < packs; i += grid_threads()) middle[i] = uint4{0, 0, 0, 0};
  if (thread < head) data[thread] = 0;
  if (thread < tail) data[head + packs * 16 + thread] = 0;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_packs_kernel(const T* a, const T* b, T* out, std::int64_t elems) {
  constexpr int kElems = kPackElems<T>;
  const std::int64_t packs = elems / kElems;
  const std::int64_t stride = grid_threads();
  for (std::int64_t base = grid_thread(); base < packs; base += stride * kPacksAtOnce) {
    Pack<T> left[kPacksAtOnce], right[kPacksAtOnce];
#pragma unroll
    for (int k = 0; k < kPacksAtOnce; ++k) {
      const std::int64_t i = base + k * stride;
      if (i < packs) {
        left[k] = load_pack(a + i * kElems);
        right[k] = load_pack(b + i * kElems);
      }
    }
#pragma unroll
    for (int k = 0; k < kPacksAtOnce; ++k) {
      const std::int64_t i = base + k * stride;
      if (i >= packs) break;
      Pack<T> sum;
#pragma unroll
      for (int e = 0; e < kElems; ++e) {
        sum.values[e] =
            from_float<T>(__fadd_rn(load_float(left[k].values[e]), load_float(right[k].values[e])));
      }
      store_pack(out + i * kElems, sum);
    }
  }
  const std::int64_t rest = packs * kElems + grid_thread();
  if (rest < elems) {
    out[rest] = from_float<T>(__fadd_rn(load_float(a[rest]), load_float(b[rest])));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_each_kernel(const T* a, const T* b, T* out, std::int64_t elems) {
  for (std::int64_t i = grid_thread(); i < elems; i += grid_threads()) {
    out[i] = from_float<T>(__fadd_rn(load_float(a[i]), load_float(b[i])));
  }
}

}  // namespace

void zero(StreamHandle stream, void* data, std::uint64_t bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<std::int64_t>(bytes);
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % 16);
  const std::int64_t head = std::min(size, (16 - past) % 16);
  const std::int64_t packs = (size - head) / 16;
  launch(stream, grid_stride_blocks(packs / kThreads + 1, kThreads), kThreads, 0, &zero_kernel,
         static_cast<std::uint8_t*>(data), head, packs, size - head - packs * 16);
}

void add(StreamHandle stream, const void* a, const void* b, void* out, std::int64_t elems,
         DType dtype) {
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (elems == 0) return;
    const bool aligned = all_aligned_to_16(a, b, out);
    const std::int64_t per_block = kThreads * (aligned ? kPackElems<T> : 1);
    launch(stream, grid_stride_blocks((elems + per_block - 1) / per_block, kThreads), kThreads, 0,
           aligned ? &add_packs_kernel<T> : &add_each_kernel<T>, static_cast<const T*>(a),
           static_cast<const T*>(b), static_cast<T*>(out), elems);
  });
}

}  // namespace sluice::cuda
