#include "engine/train/plan/model_flops.hpp"

namespace sluice::train {

double flops_per_token(const model::ModelShape& shape, std::int64_t seq) {
  const auto hidden = static_cast<double>(shape.hidden);
  const auto layers = static_cast<double>(shape.layers);
  const double up_rows = static_cast<double>(shape.ffn) * (shape.is_llama() ? 2 : 1);
  const double block_rows = static_cast<double>(shape.qkv_cols() + shape.hidden + shape.ffn);
  // The down projection is [hidden, ffn]: as many parameters as ffn rows of `hidden` columns.
  const double parameters =
      hidden * (layers * (block_rows + up_rows) + static_cast<double>(shape.vocab));
  return 6 * parameters + 12 * layers * hidden * static_cast<double>(seq);
}

std::optional<double> measured_peak_flops(const planner::HardwareProfile& hardware,
                                          const config::Config& settled) {
  const bool gpu = settled.memory.backend == config::Config::Backend::kCuda;
  if (gpu && !hardware.gpu) return std::nullopt;
  const planner::HardwareProfile& device = gpu ? *hardware.gpu : hardware;
  if (device.cpu_name == planner::HardwareProfile{}.cpu_name) return std::nullopt;  // the default
  return settled.train.precision == config::Config::Precision::kFP32 ? device.gemm_f32_flops_per_s
                                                                     : device.gemm_bf16_flops_per_s;
}

}  // namespace sluice::train
