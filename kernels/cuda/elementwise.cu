// Zeros, sums of two arrays, column sums, and copies of columns, with the building blocks of
// map.cuh and column_sums.cuh.
#include <string>

#include "base/error.hpp"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/elementwise.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Both ends of [data, data + bytes) may be unaligned; the middle is written 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    zero_kernel(std::uint8_t* data, std::int64_t head, std::int64_t packs, std::int64_t tail) {
  const std::int64_t thread = grid_thread();
  uint4* const middle = reinterpret_cast<uint4*>(data + head);
  for (std::int64_t i = thread; i < packs; i += grid_threads()) middle[i] = uint4{0, 0, 0, 0};
  if (thread < head) data[thread] = 0;
  if (thread < tail) data[head + packs * 16 + thread] = 0;
}

struct Add {
  __device__ float operator()(const float (&x)[2]) const { return __fadd_rn(x[0], x[1]); }
};

// Neighbouring threads copy neighbouring words of a row.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_columns_kernel(const Word* in, std::int64_t in_width, Word* out, std::int64_t out_width,
                        std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = grid_thread(); i < rows * cols; i += grid_threads()) {
    const std::int64_t row = i / cols, col = i % cols;
    out[row * out_width + col] = in[row * in_width + col];
  }
}

template <class Word>
void launch_copy_columns(StreamHandle stream, const void* in, const Kernels::Columns& from,
                         void* out, const Kernels::Columns& to, std::int64_t rows,
                         std::int64_t cols) {
  const std::int64_t blocks = (rows * cols + kThreads - 1) / kThreads;
  launch(stream, grid_stride_blocks(blocks, kThreads), kThreads, 0, &copy_columns_kernel<Word>,
         static_cast<const Word*>(in) + from.first, from.width, static_cast<Word*>(out) + to.first,
         to.width, rows, cols);
}

template <class T, bool kAligned>
struct ColumnTerms {
  const T* x;

  __device__ __forceinline__ Pack<T> load(std::int64_t row, std::int64_t c,
                                          std::int64_t cols) const {
    return load_columns<kAligned>(x + row * cols, c, cols);
  }
  __device__ __forceinline__ void of(const Pack<T>& loaded, int e, float (&terms)[1]) const {
    terms[0] = load_float(loaded.values[e]);
  }
};

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
    map<T>(stream, out, elems, Add(), a, b);
  });
}

void column_sum(StreamHandle stream, const void* x, void* out, std::int64_t rows, std::int64_t cols,
                DType dtype) {
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto* const from = static_cast<const T*>(x);
    const ColumnSumsOut<1, T> to{{static_cast<T*>(out)}};
    if (all_aligned_to_16(x, cols * sizeof(T))) {
      column_sums(stream, ColumnTerms<T, true>{from}, to, rows, cols);
    } else {
      column_sums(stream, ColumnTerms<T, false>{from}, to, rows, cols);
    }
  });
}

void copy_columns(StreamHandle stream, const void* in, Kernels::Columns from, void* out,
                  Kernels::Columns to, std::int64_t rows, std::int64_t cols, DType dtype) {
  if (rows <= 0 || cols <= 0) return;
  switch (dtype_bytes(dtype)) {
    case 2:
      return launch_copy_columns<std::uint16_t>(stream, in, from, out, to, rows, cols);
    case 4:
      return launch_copy_columns<std::uint32_t>(stream, in, from, out, to, rows, cols);
    case 8:
      return launch_copy_columns<std::uint64_t>(stream, in, from, out, to, rows, cols);
    default:
      throw InternalError("columns of " + std::string(dtype_name(dtype)) + " are not copied");
  }
}

void fold(StreamHandle stream, void* into, const void* from, DType dtype, std::int64_t elems) {
  add(stream, into, from, into, elems, dtype);
}

}  // namespace sluice::kernels::cuda
