#include "kernels/cuda/fused_attention.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::cuda {
namespace {

// The largest divisor of `count` that is at most `most`; `most` >= 1.
std::int64_t largest_divisor(std::int64_t count, std::uint64_t most) {
  std::int64_t divisor = count;
  while (static_cast<std::uint64_t>(divisor) > most || count % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

std::optional<AttentionSlice> backward_slice(const AttentionShape& shape) {
  SLUICE_CHECK(shape.batch > 0 && shape.time > 0 && shape.kv_heads > 0 && shape.heads > 0);
  const std::uint64_t padded = round_up(static_cast<std::uint64_t>(shape.time), 64);
  const std::uint64_t group_heads = static_cast<std::uint64_t>(shape.heads / shape.kv_heads);
  // Heads of keys whose padded * padded * 2 * group_heads bytes fit, without sums that overflow.
  const auto fitting = [&](std::uint64_t bytes) {
    return bytes / 2 / padded / padded / group_heads;
  };
  if (fitting(kMostScoreBytes) == 0) return std::nullopt;
  const std::uint64_t most = std::max<std::uint64_t>(fitting(kScoreBytes), 1);
  const auto kv_heads = static_cast<std::uint64_t>(shape.kv_heads);
  if (most < kv_heads) return AttentionSlice{1, largest_divisor(shape.kv_heads, most)};
  return AttentionSlice{largest_divisor(shape.batch, most / kv_heads), shape.kv_heads};
}

std::uint64_t fused_attention_bytes(const AttentionShape& shape) {
  constexpr std::uint64_t kSmallBytes = 64 << 10;
  std::uint64_t bytes = kSmallBytes;
  if (const auto slice = backward_slice(shape)) {
    const auto heads =
        static_cast<std::uint64_t>(slice->batch * slice->kv_heads * (shape.heads / shape.kv_heads));
    const auto time = static_cast<std::uint64_t>(shape.time);
    const std::uint64_t padded = round_up(time, 64);
    bytes += heads * padded * padded * 2;     // gradients of scores
    bytes += heads * padded * sizeof(float);  // sums of dout * out
    // Of keys and values for each head of queries, before those that share a head are added up.
    if (shape.heads != shape.kv_heads) {
      bytes += 2 * heads * padded * static_cast<std::uint64_t>(shape.head_dim) * 2;
    }
  }
  return round_up(bytes, kTensorAlignmentBytes);
}

}  // namespace sluice::cuda
