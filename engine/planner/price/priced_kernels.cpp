// Each call is priced by the first figure that the profile has: a measured grid of sizes for the
// operation, else a plain rate (products by their floating point operations, all others by the
// bytes that they move).
#include "engine/planner/price/priced_kernels.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::planner {
namespace {

// The share of a large product's rate that attention reaches, for profiles without a grid: its
// products are small, and its softmax is no product.
constexpr double kAttentionEfficiency = 0.6;

double product(const OperationSize& size) {
  double result = 1;
  for (const std::int64_t extent : size) result *= static_cast<double>(extent);
  return result;
}

double bytes_of(DType dtype) {
  return static_cast<double>(dtype_bytes(dtype));
}

// fp16 is not measured but priced as bf16. It moves the same bytes, and on machines without native
// bf16 products both go through fp32. On machines with native bf16, fp16 products take longer than
// this price.
DType priced_as(DType dtype) {
  return dtype == DType::kF16 ? DType::kBF16 : dtype;
}

TimedOperation gemm_operation(const kernels::GemmShape& shape) {
  if (shape.transpose_a) return TimedOperation::kGemmTN;
  return shape.transpose_b ? TimedOperation::kGemmNT : TimedOperation::kGemmNN;
}

OperationSize attention_size(const kernels::AttentionShape& shape) {
  return {shape.batch * shape.heads, shape.time, shape.head_dim};
}

// The grids are of causal squares: the one with as many scores.
OperationSize attention_size(const kernels::AttentionPart& part) {
  const double scores = static_cast<double>(part.queries) * static_cast<double>(part.keys);
  const double time = part.causal ? static_cast<double>(part.keys) : std::sqrt(2 * scores);
  return {part.heads, std::max<std::int64_t>(std::llround(time), 1), part.head_dim};
}

OperationSize head_size(const kernels::HeadShape& shape) {
  return {shape.rows, shape.vocab, shape.hidden};
}

}  // namespace

PricedKernels::PricedKernels(const HardwareProfile& hardware, int threads) : hardware_(hardware) {
  SLUICE_CHECK(threads > 0);
  const auto speed = [&](int cores) { return 1 + (cores - 1) * hardware.core_scaling; };
  slowdown_ = std::max(1.0, speed(hardware.cores) / speed(threads));
}

double PricedKernels::product_s(double flops, DType dtype) const {
  return flops /
         (dtype == DType::kF32 ? hardware_.gemm_f32_flops_per_s : hardware_.gemm_bf16_flops_per_s);
}

double PricedKernels::stream_s(double bytes) const {
  return bytes / hardware_.memory_bandwidth_bytes_per_s;
}

// Two products, and the logits twice.
double PricedKernels::plain_head_s(const OperationSize& size, DType dtype) const {
  return product_s(4 * product(size), dtype) +
         stream_s(8.0 * static_cast<double>(size[0] * size[1]));
}

void PricedKernels::charge(TimedOperation operation, DType dtype, const OperationSize& size,
                           double plain_s, double share) {
  const OperationGrid* const grid = hardware_.find(operation, priced_as(dtype));
  charge_plain(share * (grid != nullptr ? grid->seconds_at(size) : plain_s));
}

void PricedKernels::charge_elems(TimedOperation operation, DType dtype, std::int64_t elems,
                                 double bytes_per_elem) {
  charge(operation, dtype, {elems, 1, 1}, stream_s(static_cast<double>(elems) * bytes_per_elem));
}

void PricedKernels::gemm(const kernels::GemmShape& shape, const void*, const void*, const void*,
                         void*, void*) {
  const OperationSize size{shape.m, shape.n, shape.k};
  charge(gemm_operation(shape), shape.dtype, size, product_s(2 * product(size), shape.dtype));
}

void PricedKernels::zero(void*, std::uint64_t bytes) {
  charge_plain(stream_s(static_cast<double>(bytes)));
}

void PricedKernels::column_sum(const void*, void*, std::int64_t rows, std::int64_t cols,
                               DType dtype) {
  charge_elems(TimedOperation::kColumnSum, dtype, rows * cols, bytes_of(dtype));
}

void PricedKernels::norm_forward(const kernels::NormShape& shape, const void*, const void*,
                                 const void*, void*, float*, float*) {
  charge_elems(TimedOperation::kNormForward, shape.dtype, shape.rows * shape.cols,
               2 * bytes_of(shape.dtype));
}

void PricedKernels::norm_backward_input(const kernels::NormShape& shape, const void*, const void*,
                                        const void*, const float*, const float*, const void*,
                                        void*) {
  charge_elems(TimedOperation::kNormBackwardInput, shape.dtype, shape.rows * shape.cols,
               4 * bytes_of(shape.dtype));
}

void PricedKernels::norm_backward_weight(const kernels::NormShape& shape, const void*, const void*,
                                         const float*, const float*, void*, void*) {
  charge_elems(TimedOperation::kNormBackwardWeight, shape.dtype, shape.rows * shape.cols,
               2 * bytes_of(shape.dtype));
}

void PricedKernels::add(const void*, const void*, void*, std::int64_t elems, DType dtype) {
  charge_elems(TimedOperation::kAdd, dtype, elems, 3 * bytes_of(dtype));
}

void PricedKernels::gelu_forward(const void*, void*, std::int64_t elems, DType dtype) {
  charge_elems(TimedOperation::kGeluForward, dtype, elems, 2 * bytes_of(dtype));
}

void PricedKernels::gelu_backward(const void*, const void*, void*, std::int64_t elems,
                                  DType dtype) {
  charge_elems(TimedOperation::kGeluBackward, dtype, elems, 3 * bytes_of(dtype));
}

void PricedKernels::swiglu_forward(const void*, void*, std::int64_t rows, std::int64_t cols,
                                   DType dtype) {
  charge_elems(TimedOperation::kSwigluForward, dtype, rows * cols, 3 * bytes_of(dtype));
}

void PricedKernels::swiglu_backward(const void*, const void*, void*, std::int64_t rows,
                                    std::int64_t cols, DType dtype) {
  charge_elems(TimedOperation::kSwigluBackward, dtype, rows * cols, 5 * bytes_of(dtype));
}

void PricedKernels::rope(const kernels::AttentionShape& shape, float, bool, void*) {
  charge_elems(TimedOperation::kRope, shape.dtype,
               shape.batch * shape.time * (shape.heads + shape.kv_heads) * shape.head_dim,
               2 * bytes_of(shape.dtype));
}

// Beyond its edge a grid keeps the rate per element, but attention's work grows with the square of
// the time.
void PricedKernels::charge_attention(TimedOperation operation, DType dtype,
                                     const OperationSize& size, double flops) {
  const OperationGrid* const grid = hardware_.find(operation, priced_as(dtype));
  if (grid == nullptr) return charge_plain(product_s(flops / kAttentionEfficiency, dtype));
  const double beyond = static_cast<double>(size[1]) / static_cast<double>(grid->axes[1].back());
  charge_plain(grid->seconds_at(size) * std::max(1.0, beyond));
}

void PricedKernels::attention_forward(const kernels::AttentionShape& shape, const void*, void*,
                                      float*, void*) {
  // Scores and their product with the values, the causal half of them.
  const OperationSize size = attention_size(shape);
  const double flops = 2 * product(size) * static_cast<double>(shape.time);
  charge_attention(TimedOperation::kAttentionForward, shape.dtype, size, flops);
}

void PricedKernels::attention_backward(const kernels::AttentionShape& shape, const void*,
                                       const void*, const void*, const float*, void*, void*) {
  const OperationSize size = attention_size(shape);
  const double flops = 5 * product(size) * static_cast<double>(shape.time);
  charge_attention(TimedOperation::kAttentionBackward, shape.dtype, size, flops);
}

void PricedKernels::attention_part_forward(const kernels::AttentionPart& part, const void*,
                                           const void*, bool, float*, float*, void*) {
  const OperationSize size = attention_size(part);
  const double flops = 2 * product(size) * static_cast<double>(size[1]);
  charge_attention(TimedOperation::kAttentionForward, part.dtype, size, flops);
}

void PricedKernels::attention_part_backward(const kernels::AttentionPart& part, const void*,
                                            const void*, const void*, const void*, const float*,
                                            float*, float*, void*) {
  const OperationSize size = attention_size(part);
  const double flops = 5 * product(size) * static_cast<double>(size[1]);
  charge_attention(TimedOperation::kAttentionBackward, part.dtype, size, flops);
}

void PricedKernels::embedding_forward(const std::int32_t*, kernels::TokenRange, const void*,
                                      const void*, void*, std::int64_t rows, std::int64_t,
                                      std::int64_t hidden, DType dtype) {
  charge_elems(TimedOperation::kEmbeddingForward, dtype, rows * hidden, 3 * bytes_of(dtype));
}

void PricedKernels::embedding_backward(const std::int32_t*, kernels::TokenRange range, const void*,
                                       void*, void*, std::int64_t rows, std::int64_t, std::int64_t,
                                       std::int64_t hidden, DType dtype, void*) {
  charge_elems(TimedOperation::kEmbeddingBackward, dtype, (rows + range.count) * hidden,
               2 * bytes_of(dtype));
}

void PricedKernels::head_forward(const kernels::HeadShape& shape, const void*, const void*,
                                 const std::int32_t*, float, double*, float*, void*, void*) {
  const OperationSize size = head_size(shape);
  charge(TimedOperation::kHeadForward, shape.dtype, size, plain_head_s(size, shape.dtype));
}

void PricedKernels::head_backward_weight(const kernels::HeadShape& shape, const void*, const void*,
                                         const std::int32_t*, float, const float*, void*, void*) {
  const OperationSize size = head_size(shape);
  charge(TimedOperation::kHeadBackward, shape.dtype, size, plain_head_s(size, shape.dtype));
}

// The head's forward pass has two products, the logits and the gradient of x. Split in steps it makes
// the logits once more.
void PricedKernels::head_statistics(const kernels::HeadShape& shape, const void*, const void*,
                                    const std::int32_t*, const kernels::RowStatistics&, void*) {
  const OperationSize size = head_size(shape);
  charge(TimedOperation::kHeadForward, shape.dtype, size, plain_head_s(size, shape.dtype), 0.5);
}

void PricedKernels::copy_columns(const void*, Columns, void*, Columns, std::int64_t rows,
                                 std::int64_t cols, DType dtype) {
  charge_plain(
      stream_s(2.0 * static_cast<double>(bytes_of(dtype, 1)) * static_cast<double>(rows * cols)));
}

void PricedKernels::head_rescale(std::int64_t rows, const kernels::RowStatistics&) {
  charge_plain(stream_s(4.0 * sizeof(float) * static_cast<double>(rows)));
}

void PricedKernels::head_loss(std::int64_t rows, const kernels::RowStatistics&, double*, float*) {
  charge_plain(stream_s(4.0 * sizeof(float) * static_cast<double>(rows)));
}

void PricedKernels::head_input_gradient(const kernels::HeadShape& shape, const void*, const void*,
                                        const std::int32_t*, float, const float*, void*, void*) {
  const OperationSize size = head_size(shape);
  charge(TimedOperation::kHeadForward, shape.dtype, size, plain_head_s(size, shape.dtype));
}

void PricedKernels::accumulate(float*, const void*, DType grad_dtype, bool, std::int64_t elems) {
  charge_elems(TimedOperation::kAccumulate, grad_dtype, elems,
               2 * sizeof(float) + bytes_of(grad_dtype));
}

void PricedKernels::fold(void*, const void*, DType dtype, std::int64_t elems) {
  charge_plain(stream_s(3 * bytes_of(dtype) * static_cast<double>(elems)));
}

void PricedKernels::squared_norm_blocks(const void*, DType dtype, DType,
                                        std::span<const Block> blocks, double*) {
  std::int64_t elems = 0;
  for (const Block& block : blocks) elems += block.end - block.begin;
  charge_elems(TimedOperation::kSquaredNorm, dtype, elems, bytes_of(dtype));
}

// The share of the time of AdamW with fp32 states that would be left if memory were free. Measured
// on two AVX2 cores from the rates of all formats (`sluice bench adam`).
constexpr double kUpdateArithmeticShare = 0.56;

// The profile measures AdamW with fp32 states. Other states and rules are priced by the bytes that
// they move or by their arithmetic, whichever takes longer, plus Muon's products.
void PricedKernels::update(const kernels::OptimizerOptions& options,
                           const kernels::UpdateBuffers& buffers,
                           std::span<const kernels::ParameterSegment> segments,
                           const kernels::UpdateScalars&, void*) {
  kernels::OptimizerOptions measured;
  measured.weight = priced_as(options.weight);
  const OperationGrid* const grid = hardware_.find(TimedOperation::kAdamW, measured.weight);
  const double adamw_s = grid != nullptr
                             ? grid->seconds_at({buffers.elems, 1, 1})
                             : static_cast<double>(buffers.elems) / hardware_.adam_params_per_s;
  const double traffic = kernels::update_bytes_per_elem(options, buffers.grad_dtype) /
                         kernels::update_bytes_per_elem(measured, measured.weight);
  charge_plain(adamw_s * std::max(traffic, kUpdateArithmeticShare * update_arithmetic(options)));
  charge_plain(product_s(kernels::update_product_flops(options, segments), DType::kF32));
}

void PricedKernels::cast(const void*, DType in_dtype, void*, DType out_dtype, bool,
                         std::int64_t elems) {
  charge_plain(stream_s((bytes_of(in_dtype) + bytes_of(out_dtype)) * static_cast<double>(elems)));
}

}  // namespace sluice::planner
