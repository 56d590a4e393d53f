// The rules of kernels/optimizer.hpp on the host. Elementwise rules are one fused pass over
// gradient, states and weight. Each rule has a file of its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/optimizer.hpp"

namespace sluice::kernels::host {

class Parallel;

// Elements of a task. Gradient, states and weight take at most 28 bytes per element: about 0.5 MiB,
// which fits an L2 cache.
inline constexpr std::int64_t kUpdatePieceElems = 16384;

// Elements of a task of an elementwise update without a guard. Tasks grow up to eight times if the
// array has hundreds of them and each thread a dozen, because a processor reads one long run of
// memory faster than many short ones (Zen cores gained a tenth or more with fp32 states).
inline std::int64_t update_task_elems(std::int64_t elems, int threads) {
  const auto tasks = static_cast<std::uint64_t>(std::max(256, 16 * threads));
  const std::uint64_t share = static_cast<std::uint64_t>(elems) / tasks;
  return std::clamp(static_cast<std::int64_t>(std::bit_floor(share)), kUpdatePieceElems,
                    8 * kUpdatePieceElems);
}

// Elementwise rules. host::update has checked the segments. A format without a kernel throws
// InternalError.
using ElementwiseRule = void(const Parallel& parallel, const OptimizerOptions& options,
                             const UpdateBuffers& buffers,
                             std::span<const ParameterSegment> segments,
                             const UpdateScalars& scalars);
ElementwiseRule adamw;
ElementwiseRule adam;
ElementwiseRule sgd;
ElementwiseRule lion;

// Rules that need whole tensors; every segment is one. workspace: 256-byte aligned, of the size
// that the function next to the rule returns.
void adafactor(const Parallel& parallel, const OptimizerOptions& options,
               const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
               const UpdateScalars& scalars, void* workspace);
std::uint64_t adafactor_workspace_bytes(std::span<const ParameterSegment> segments);
void sm3(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars, void* workspace);
std::uint64_t sm3_workspace_bytes(std::span<const ParameterSegment> segments);

// The rule with matrix products. It is an object, so that a library without them need not link the
// rest of it.
class ProductRule {
 public:
  virtual ~ProductRule() = default;
  virtual std::uint64_t workspace_bytes(std::span<const ParameterSegment> segments) const = 0;
  virtual void update(const Parallel& parallel, const OptimizerOptions& options,
                      const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
                      const UpdateScalars& scalars, void* workspace) const = 0;
};

}  // namespace sluice::kernels::host
