// The formulas of kernels/cuda's workspaces once more, for machines without CUDA. A test compares
// both wherever CUDA is built.
#include "engine/planner/price/described_kernels.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace sluice::planner {
namespace {

// kernels/cuda/gemm_cublaslt.hpp: the same for every product.
constexpr std::uint64_t kProductBytes = 32 * kMiB;

std::uint64_t unsigned_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}
std::uint64_t aligned(std::uint64_t bytes) {
  return round_up(bytes, kTensorAlignmentBytes);
}

// The head (kernels/cuda/head.cpp). A slice has at most this many bytes of fp32 logits, and at
// least this extent.
constexpr std::int64_t kLogitsBytes = 128 * static_cast<std::int64_t>(kMiB);
constexpr std::int64_t kLeastSlice = 128;

std::int64_t slice_of(std::int64_t extent, std::int64_t other) {
  const std::int64_t fit = kLogitsBytes / (other * std::int64_t{sizeof(float)});
  return std::min(extent, std::max(kLeastSlice, fit / kLeastSlice * kLeastSlice));
}
std::int64_t stride_of(std::int64_t cols) {
  return static_cast<std::int64_t>(round_up(unsigned_of(cols), 64));
}
// Logits in fp32, and for 16-bit dtypes their gradients next to them.
std::uint64_t logits_bytes(std::int64_t logits, DType dtype) {
  const std::uint64_t gradients =
      dtype == DType::kF32 ? 0 : aligned(unsigned_of(logits) * dtype_bytes(dtype));
  return aligned(unsigned_of(logits) * sizeof(float)) + gradients;
}

// Fused attention (kernels/cuda/fused_attention.cpp): the gradients of all scores of a slice, in
// whole tiles of 64 queries by 128 keys.
constexpr std::uint64_t kScoreBytes = 256 * kMiB;
constexpr std::uint64_t kQueryTile = 64;
constexpr std::uint64_t kKeyTile = 128;

std::uint64_t largest_divisor(std::uint64_t count, std::uint64_t most) {
  std::uint64_t divisor = count;
  while (divisor > most || count % divisor != 0) --divisor;
  return divisor;
}

std::uint64_t fused_attention_bytes(const kernels::AttentionShape& shape) {
  constexpr std::uint64_t kSmallBytes = 64 * kKiB;
  const std::uint64_t time = unsigned_of(shape.time);
  const std::uint64_t group = unsigned_of(shape.heads / shape.kv_heads);
  const std::uint64_t kv_heads = unsigned_of(shape.kv_heads);
  const auto fitting = [&](std::uint64_t bytes) {
    return bytes / 2 / round_up(time, kQueryTile) / round_up(time, kKeyTile) / group;
  };
  if (fitting(2 * kScoreBytes) == 0) return aligned(kSmallBytes);  // one head alone is too large
  const std::uint64_t most = std::max<std::uint64_t>(fitting(kScoreBytes), 1);
  const std::uint64_t heads =
      group * (most < kv_heads
                   ? largest_divisor(kv_heads, most)
                   : kv_heads * largest_divisor(unsigned_of(shape.batch), most / kv_heads));
  const std::uint64_t rows = heads * round_up(time, kQueryTile);
  std::uint64_t bytes = kSmallBytes + rows * round_up(time, kKeyTile) * 2 + rows * sizeof(float);
  if (group > 1) bytes += 2 * rows * unsigned_of(shape.head_dim) * sizeof(float);
  return aligned(bytes);
}

// Nobody asks these kernels for a price.
const HardwareProfile& no_machine() {
  static const HardwareProfile none;
  return none;
}

}  // namespace

DescribedKernels::DescribedKernels(std::unique_ptr<kernels::Kernels> host)
    : PricedKernels(no_machine(), 1), host_(std::move(host)) {}

std::uint64_t DescribedKernels::gemm_workspace_bytes(const kernels::GemmShape&) const {
  return kProductBytes;
}

std::uint64_t DescribedKernels::attention_workspace_bytes(
    const kernels::AttentionShape& shape) const {
  const std::uint64_t sums =
      aligned(unsigned_of(shape.batch * shape.heads * shape.time) * sizeof(float));
  const bool fused = shape.dtype != DType::kF32 && shape.head_dim % 8 == 0;
  return fused ? std::max(sums, fused_attention_bytes(shape)) : sums;
}

std::uint64_t DescribedKernels::attention_part_workspace_bytes(
    const kernels::AttentionPart& part) const {
  return aligned(unsigned_of(part.heads * part.queries) * sizeof(float));
}

std::uint64_t DescribedKernels::embedding_backward_workspace_bytes(std::int64_t rows,
                                                                   std::int64_t vocab) const {
  return unsigned_of(rows + vocab) * 2 * sizeof(std::int32_t);
}

std::uint64_t DescribedKernels::head_workspace_bytes(const kernels::HeadShape& shape) const {
  const std::uint64_t forward =
      aligned(unsigned_of(shape.rows) * sizeof(double)) +
      logits_bytes(slice_of(shape.rows, shape.vocab) * stride_of(shape.vocab), shape.dtype);
  const std::uint64_t weight =
      logits_bytes(shape.rows * stride_of(slice_of(shape.vocab, shape.rows)), shape.dtype);
  return std::max(forward, weight) + kProductBytes;
}

std::uint64_t DescribedKernels::update_workspace_bytes(
    const kernels::OptimizerOptions& options,
    std::span<const kernels::ParameterSegment> segments) const {
  return host_->update_workspace_bytes(options, segments);
}

}  // namespace sluice::planner
