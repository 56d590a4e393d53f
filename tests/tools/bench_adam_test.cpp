#include "tools/bench/bench_adam.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/host/adamw.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_traffic.hpp"

namespace sluice {
namespace {

TEST(BenchAdam, SaysRatesAndBytesOfBothGradients) {
  AdamBenchOptions options;
  options.elems = 4 * host::kAdamWPieceElems;
  options.threads = 1;
  options.rounds = 7;
  const nlohmann::json event = run_adam_bench(options);
  EXPECT_EQ(event.at("event"), "bench");
  EXPECT_EQ(event.at("name"), "adam");
  const nlohmann::json& figures = event.at("figures");
  EXPECT_EQ(figures.at("threads"), 1);
  EXPECT_EQ(figures.at("bf16_bytes_per_param"), 28);
  EXPECT_EQ(figures.at("f32_bytes_per_param"), 30);
  for (const std::string grad : {"bf16", "f32"}) {
    EXPECT_GT(figures.at(grad + "_params_per_s"), 0.0);
    EXPECT_GT(figures.at(grad + "_traffic_params_per_s"), 0.0);
    EXPECT_GT(figures.at(grad + "_ratio"), 0.0);
  }
}

TEST(BenchAdam, RefusesWhatItCannotMeasure) {
  for (const AdamBenchOptions& wrong :
       {AdamBenchOptions{0, 1, 7}, AdamBenchOptions{host::kAdamWPieceElems + 1, 1, 7},
        AdamBenchOptions{host::kAdamWPieceElems, 1, 6},
        AdamBenchOptions{host::kAdamWPieceElems, -1, 7}}) {
    EXPECT_THROW(run_adam_bench(wrong), InputError);
  }
}

// The yardstick touches every element that AdamW touches.
TEST(BenchAdam, TrafficPassesOverEveryElement) {
  const std::int64_t elems = 2 * host::kAdamWPieceElems;
  const auto count = static_cast<std::size_t>(elems);
  for (const DType grad_dtype : {DType::kBF16, DType::kF32}) {
    std::vector<float> grad32(count, 1.0f), master(count), moment1(count), moment2(count);
    std::vector<bf16> grad16(count, bf16_from_float(1.0f)), weight(count);
    AdamWBuffers buffers;
    buffers.grad = grad_dtype == DType::kBF16 ? static_cast<const void*>(grad16.data())
                                              : static_cast<const void*>(grad32.data());
    buffers.grad_dtype = grad_dtype;
    buffers.master = master.data();
    buffers.moment1 = moment1.data();
    buffers.moment2 = moment2.data();
    buffers.weight = weight.data();
    buffers.elems = elems;
    adam_traffic(host::Parallel(2), buffers, 0x80000000u);  // flips the sign
    const std::uint16_t flipped = grad_dtype == DType::kBF16 ? 0x3f80 : 0xbf80;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(weight[i].bits, flipped) << i;
      for (const auto* array : {&master, &moment1, &moment2}) {
        ASSERT_TRUE(std::signbit((*array)[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
