// Slices and workspace of fused attention, as functions of the shape alone.
//
// The gradients of scores take rows * padded time * 2 bytes per query head. A slice is the largest
// divisor of the heads, or of the batch, with gradients that fit kScoreBytes.
#include "kernels/cuda/fused_attention.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::kernels::cuda {
namespace {

// The library pads scores to whole tiles of these sizes.
constexpr std::uint64_t kQueryTile = 64;
constexpr std::uint64_t kKeyTile = 128;

// The largest divisor of `count` that is at most `most`; `most` >= 1.
std::int64_t largest_divisor(std::int64_t count, std::uint64_t most) {
  std::int64_t divisor = count;
  while (static_cast<std::uint64_t>(divisor) > most || count % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

std::optional<AttentionSlice> backward_slice(const AttentionShape& shape,
                                             std::uint64_t score_bytes) {
  SLUICE_CHECK(shape.batch > 0 && shape.time > 0 && shape.kv_heads > 0 && shape.heads > 0);
  const std::uint64_t group_heads = static_cast<std::uint64_t>(shape.heads / shape.kv_heads);
  const auto time = static_cast<std::uint64_t>(shape.time);
  // Number of key heads with score gradients that fit, computed without products that could
  // overflow.
  const auto fitting = [&](std::uint64_t bytes) {
    return bytes / 2 / round_up(time, kQueryTile) / round_up(time, kKeyTile) / group_heads;
  };
  if (fitting(kMostScoreBytes) == 0) return std::nullopt;
  const std::uint64_t most = std::max<std::uint64_t>(fitting(score_bytes), 1);
  const auto kv_heads = static_cast<std::uint64_t>(shape.kv_heads);
  if (most < kv_heads) return AttentionSlice{1, largest_divisor(shape.kv_heads, most)};
  return AttentionSlice{largest_divisor(shape.batch, most / kv_heads), shape.kv_heads};
}

std::uint64_t fused_attention_bytes(const AttentionShape& shape, std::uint64_t score_bytes) {
  constexpr std::uint64_t kSmallBytes = 64 << 10;
  std::uint64_t bytes = kSmallBytes;
  if (const auto slice = backward_slice(shape, score_bytes)) {
    const auto heads =
        static_cast<std::uint64_t>(slice->batch * slice->kv_heads * (shape.heads / shape.kv_heads));
    const auto time = static_cast<std::uint64_t>(shape.time);
    const std::uint64_t rows = heads * round_up(time, kQueryTile);
    bytes += rows * round_up(time, kKeyTile) * 2;  // gradients of scores
    bytes += rows * sizeof(float);                 // sums of dout * out
    // Gradients of keys and values for each query head, before heads that share a key are added up.
    // (Before Blackwell they have 16 bits.)
    if (shape.heads != shape.kv_heads) {
      bytes += 2 * rows * static_cast<std::uint64_t>(shape.head_dim) * sizeof(float);
    }
  }
  return round_up(bytes, kTensorAlignmentBytes);
}

}  // namespace sluice::kernels::cuda
