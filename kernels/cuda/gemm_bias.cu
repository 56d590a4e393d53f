// Adds a bias to fp32 products, where the epilogue of a backend cannot (gemm_cublaslt.cpp).
#include "kernels/cuda/gemm_bias.hpp"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(float* c, const T* bias, std::int64_t elems, std::int64_t cols,
                    std::int64_t stride) {
  for (std::int64_t i = grid_thread(); i < elems; i += grid_threads()) {
    c[i / cols * stride + i % cols] += load_float(bias[i % cols]);
  }
}

}  // namespace

void add_bias(StreamHandle stream, float* c, const void* bias, DType bias_dtype, std::int64_t rows,
              std::int64_t cols, std::int64_t stride) {
  const std::int64_t elems = rows * cols, blocks = (elems + kThreads - 1) / kThreads;
  with_act_type(bias_dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, dim3(grid_stride_blocks(blocks, kThreads)), dim3(kThreads), 0,
           add_bias_kernel<T>, c, static_cast<const T*>(bias), elems, cols, stride);
  });
}

}  // namespace sluice::kernels::cuda
