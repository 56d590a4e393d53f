// The duration of each operation of a step on a machine, by size: measured on a grid of sizes and
// interpolated between them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"

namespace sluice::planner {

// The operations that a step spends its time in: kernels, copies and transfers, with their sizes
// (up to three; the others are 1).
enum class TimedOperation : std::uint8_t {
  kGemmNN,             // m, n, k; C = A B
  kGemmNT,             // m, n, k; C = A B^T
  kGemmTN,             // m, n, k; C = A^T B
  kHeadForward,        // rows, vocab, hidden; with the gradient of x
  kHeadBackward,       // rows, vocab, hidden
  kAttentionForward,   // batch * heads, time, head_dim
  kAttentionBackward,  // batch * heads, time, head_dim
  kNormForward,        // elements, here and in all that follow
  kNormBackwardInput,
  kNormBackwardWeight,
  kColumnSum,
  kAdd,
  kGeluForward,
  kGeluBackward,
  kSwigluForward,      // of y
  kSwigluBackward,     // of dy
  kRope,               // of the rotated part
  kEmbeddingForward,   // of out
  kEmbeddingBackward,  // of dout and dtable together
  kAccumulate,
  kSquaredNorm,
  kAdamW,        // dtype: of the weight
  kCopy,         // bytes, here and below; between host and device; dtype kU8
  kStorageRead,  // one transfer alone, from the request to the wake-up of the requester
  kStorageWrite,
};
constexpr bool is_in_bytes(TimedOperation operation) {
  return operation >= TimedOperation::kCopy;
}
inline constexpr std::size_t kTimedOperationCount = 25;
std::string_view timed_operation_name(TimedOperation operation);  // "gemm_nn"
std::optional<TimedOperation> timed_operation_named(std::string_view name);

using OperationSize = std::array<std::int64_t, 3>;

// Times of one operation at every combination of a few sizes.
struct OperationGrid {
  TimedOperation operation = TimedOperation::kGemmNN;
  DType dtype = DType::kF32;  // kF32, kBF16 or kU8
  // Strictly ascending, none empty; an unused axis is {1}.
  std::array<std::vector<std::int64_t>, 3> axes;
  // All positive; by axis 0, then 1, then 2 (the last one fastest).
  std::vector<double> seconds;

  std::size_t points() const { return axes[0].size() * axes[1].size() * axes[2].size(); }
  // Seconds. Between the grid's points the time per unit of work (the product of the sizes) is
  // linear in the logarithms. Below the grid the time is that of the edge, since only overhead is
  // left. Above it the edge's rate holds. InternalError if `seconds` does not have points()
  // entries.
  double seconds_at(const OperationSize& size) const;
};

}  // namespace sluice::planner
