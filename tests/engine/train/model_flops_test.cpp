#include "engine/train/plan/model_flops.hpp"

#include <gtest/gtest.h>

namespace sluice::testing {
namespace {

// GPT-2 small: 84.9 M parameters in its blocks' matrices, 38.6 M in its (tied) head.
TEST(ModelFlops, CountsTheProductsOfGpt2Small) {
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  const model::ModelShape shape{model::ModelFamily::kGpt2, 12, 768, 12, 12, 4 * 768, 50257, 1024};
  const double parameters = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  EXPECT_DOUBLE_EQ(train::flops_per_token(shape, 1024), 6 * parameters + 12.0 * 12 * 768 * 1024);
}

TEST(ModelFlops, CountsLlamasGateAndItsFewerKeyHeads) {
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  const model::ModelShape shape{model::ModelFamily::kLlama, 1, 64, 4, 2, 100, 10};
  // q 64, k and v 32 each, output 64; gate, up and down 100 each.
  const double parameters = 64.0 * (64 + 64 + 64 + 300 + 10);
  EXPECT_DOUBLE_EQ(train::flops_per_token(shape, 8), 6 * parameters + 12.0 * 64 * 8);
}

TEST(ModelFlops, APeakIsTheMeasuredOneOfTheDeviceAndPrecision) {
  config::Config config;
  config.memory.backend = config::Config::Backend::kHost;
  planner::HardwareProfile hardware;
  EXPECT_EQ(train::measured_peak_flops(hardware, config), std::nullopt);  // never measured
  hardware.cpu_name = "a processor";
  hardware.gemm_f32_flops_per_s = 1e9;
  hardware.gemm_bf16_flops_per_s = 2e9;
  EXPECT_EQ(train::measured_peak_flops(hardware, config), 2e9);
  config.train.precision = config::Config::Precision::kFP32;
  EXPECT_EQ(train::measured_peak_flops(hardware, config), 1e9);
  config.memory.backend = config::Config::Backend::kCuda;
  EXPECT_EQ(train::measured_peak_flops(hardware, config), std::nullopt);  // its GPU was not
  planner::HardwareProfile gpu = hardware;
  gpu.gemm_f32_flops_per_s = 5e12;
  hardware.gpu = std::make_shared<const planner::HardwareProfile>(gpu);
  EXPECT_EQ(train::measured_peak_flops(hardware, config), 5e12);
}

}  // namespace
}  // namespace sluice::testing
