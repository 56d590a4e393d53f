// Entry points of our own attention kernels: checks, the choice of kernels, and delta.
//
// delta[b, h, t] = sum(dout * out) over head_dim equals sum(dP * P) over keys, the term that
// softmax backward subtracts. One pass computes it before the two backward kernels, a warp per row
// and head. 16-bit dtypes with head_dim a multiple of 8 run on tensor cores, all others in plain
// fp32.
#include "base/units.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/attention_layout.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

void check(const AttentionShape& shape) {
  SLUICE_CHECK(shape.batch > 0 && shape.time > 0 && shape.head_dim > 0);
  SLUICE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0);
  SLUICE_CHECK(is_act_dtype(shape.dtype));
  SLUICE_CHECK_MSG(shape.head_dim <= kMaxHeadDim, "attention on CUDA needs head_dim <= 256");
}

// Copies move 16 bytes at a time.
bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

bool on_tensor_cores(const AttentionShape& shape) {
  return shape.dtype != DType::kF32 && shape.head_dim % 8 == 0;
}

constexpr int kDeltaWarps = 8;

// delta[batch, head, t] = sum over head_dim of dout * out; a warp handles one row and head.
template <class T>
__global__ void delta_kernel(AttentionLayout layout, const T* dout, const T* out, float* delta) {
  const std::int64_t rows = layout.batch * layout.time * layout.heads;
  const std::int64_t row = std::int64_t{blockIdx.x} * kDeltaWarps + warp_index();
  if (row >= rows) return;  // the whole warp
  const std::int64_t head = row % layout.heads, t = row / layout.heads % layout.time;
  const std::int64_t b = row / layout.heads / layout.time;
  float sum = 0.0f;
  for (std::int64_t d = lane_index(); d < layout.head_dim; d += kWarpSize) {
    sum += load_float(dout[row * layout.head_dim + d]) * load_float(out[row * layout.head_dim + d]);
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) delta[layout.statistic(b, head) + t] = sum;
}

}  // namespace

void launch_delta(StreamHandle stream, const AttentionShape& shape, const void* dout,
                  const void* out, float* delta) {
  const std::int64_t rows = shape.batch * shape.time * shape.heads;
  const std::int64_t blocks = (rows + kDeltaWarps - 1) / kDeltaWarps;
  SLUICE_CHECK(blocks <= INT32_MAX);
  with_act_type(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(kWarpSize * kDeltaWarps), 0,
           delta_kernel<T>, layout_of(shape), static_cast<const T*>(dout),
           static_cast<const T*>(out), delta);
  });
}

std::uint64_t attention_workspace_bytes(const AttentionShape& shape) {
  check(shape);
  const auto rows = static_cast<std::uint64_t>(shape.batch * shape.heads * shape.time);
  return round_up(rows * sizeof(float), kTensorAlignmentBytes);
}

void attention_forward(StreamHandle stream, const AttentionShape& shape, const void* qkv, void* out,
                       float* lse, void* /*workspace*/) {
  check(shape);
  SLUICE_CHECK(aligned(qkv) && aligned(out));
  const AttentionForward arguments{layout_of(shape), attention_scale(shape.head_dim), qkv, out,
                                   lse};
  const auto run = on_tensor_cores(shape) ? tensor_core_forward : plain_forward;
  run(stream, shape.dtype, arguments);
}

void attention_backward(StreamHandle stream, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace) {
  check(shape);
  SLUICE_CHECK(aligned(qkv) && aligned(out) && aligned(dout) && aligned(dqkv));
  auto* const delta = static_cast<float*>(workspace);
  launch_delta(stream, shape, dout, out, delta);
  const AttentionBackward arguments{
      layout_of(shape), attention_scale(shape.head_dim), dout, qkv, lse, delta, dqkv};
  const auto run = on_tensor_cores(shape) ? tensor_core_backward : plain_backward;
  run(stream, shape.dtype, arguments);
}

}  // namespace sluice::kernels::cuda
