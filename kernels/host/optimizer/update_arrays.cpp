#include "kernels/host/optimizer/update_arrays.hpp"

#include "base/error.hpp"

namespace sluice::host {
namespace {

GradFormat grad_format(const UpdateBuffers& buffers) {
  if (buffers.grad_dtype == DType::kBF16) return GradFormat::kBF16;
  if (buffers.grad_dtype == DType::kF16) return GradFormat::kF16;
  SLUICE_CHECK_MSG(buffers.grad_dtype == DType::kF32, "gradients are bf16, fp16 or fp32");
  switch (buffers.round_grad_to) {
    case DType::kBF16:
      return GradFormat::kF32ThroughBF16;
    case DType::kF16:
      return GradFormat::kF32ThroughF16;
    default:
      SLUICE_CHECK_MSG(buffers.round_grad_to == DType::kF32,
                       "gradients are rounded to bf16, to fp16 or not");
      return GradFormat::kF32;
  }
}

WeightFormat weight_format(const OptimizerOptions& options) {
  if (options.split_master) {
    SLUICE_CHECK_MSG(options.weight == DType::kBF16, "only bf16 weights have a split master");
    return WeightFormat::kSplitBF16;
  }
  if (options.weight == DType::kF32) return WeightFormat::kF32;
  if (options.weight == DType::kF16) return WeightFormat::kMasterF16;
  SLUICE_CHECK_MSG(options.weight == DType::kBF16, "weights are bf16, fp16 or fp32");
  return WeightFormat::kMasterBF16;
}

}  // namespace

UpdateArrays update_arrays(const OptimizerOptions& options, const UpdateBuffers& buffers,
                           const UpdateScalars& scalars) {
  SLUICE_CHECK_MSG(options.moments == DType::kF32 || options.moments == DType::kBF16 ||
                       options.moments == DType::kBlock8,
                   "moments are fp32, bf16 or in 8-bit blocks");
  UpdateArrays arrays;
  arrays.grad_format = grad_format(buffers);
  arrays.weight_format = weight_format(options);
  arrays.moments = options.moments;
  arrays.grad = buffers.grad;
  arrays.weight = buffers.weight;
  arrays.master = options.has_master() ? buffers.master : buffers.weight;
  arrays.moment1 = buffers.moment1;
  arrays.moment2 = buffers.moment2;
  arrays.seed = options.seed;
  arrays.step = scalars.step;
  return arrays;
}

}  // namespace sluice::host
