// The arrays of one update with their formats resolved, and the checks of an update's arguments.
// The optimizers of all devices share both.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/optimizer.hpp"

namespace sluice::kernels {

enum class GradFormat : std::uint8_t { kF32, kBF16, kF16, kF32ThroughBF16, kF32ThroughF16 };
// The location of the number that a rule updates, and the copies that it writes: a weight that is
// its own master; a master with a bf16 or fp16 weight; a bf16 weight with its remainder.
enum class WeightFormat : std::uint8_t { kF32, kMasterBF16, kMasterF16, kSplitBF16 };

struct UpdateArrays {
  GradFormat grad_format = GradFormat::kF32;
  WeightFormat weight_format = WeightFormat::kF32;
  DType moments = DType::kF32;
  const void* grad = nullptr;
  void* weight = nullptr;
  void* master = nullptr;  // kF32: the weight
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  UpdateGuard* guard = nullptr;
  // For stochastic rounding.
  std::uint64_t seed = 0;
  std::int64_t step = 1;

  std::int64_t grad_elem_bytes() const {
    return grad_format == GradFormat::kBF16 || grad_format == GradFormat::kF16 ? 2 : 4;
  }
};

// Throws InternalError for formats without a kernel.
UpdateArrays update_arrays(const OptimizerOptions& options, const UpdateBuffers& buffers,
                           const UpdateScalars& scalars);

// Check the preconditions of Kernels::update: segments ascend inside the chunk, states are those of
// the rule, and (needs_whole_tensors) every segment is a whole tensor. Throw InternalError.
void check_update(const OptimizerOptions& options, const UpdateBuffers& buffers,
                  std::span<const ParameterSegment> segments);
void check_whole_tensors(const OptimizerOptions& options,
                         std::span<const ParameterSegment> segments);

}  // namespace sluice::kernels
