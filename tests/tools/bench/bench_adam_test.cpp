#include "tools/bench/bench_adam.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_traffic.hpp"
#include "tools/bench/adam_variants.hpp"

namespace sluice::bench {
namespace {

TEST(BenchAdam, SaysRatesAndBytesOfEveryVariant) {
  AdamBenchOptions options;
  options.elems = 4 * kernels::host::kUpdatePieceElems;
  options.threads = 1;
  options.rounds = 7;
  const nlohmann::json event = run_adam_bench(options);
  EXPECT_EQ(event.at("event"), "bench");
  EXPECT_EQ(event.at("name"), "adam");
  const nlohmann::json& figures = event.at("figures");
  EXPECT_EQ(figures.at("threads"), 1);
  const nlohmann::json& variants = figures.at("variants");
  EXPECT_EQ(variants.size(), adam_variants().size());
  for (const auto& [name, of] : variants.items()) {
    EXPECT_GT(of.at("params_per_s"), 0.0) << name;
    EXPECT_GT(of.at("traffic_params_per_s"), 0.0) << name;
    EXPECT_GT(of.at("ratio"), 0.0) << name;
  }
  EXPECT_EQ(variants.at("f32").at("bytes_per_param"), 28.0);
  EXPECT_EQ(variants.at("bf16").at("bytes_per_param"), 28.0);
  EXPECT_EQ(variants.at("split").at("bytes_per_param"), 26.0);
  EXPECT_EQ(variants.at("split_bf16").at("bytes_per_param"), 18.0);
  EXPECT_EQ(variants.at("split_block8").at("bytes_per_param"), 14.125);
}

TEST(BenchAdam, MeasuresOnlyTheNamedVariants) {
  const nlohmann::json event =
      run_adam_bench({kernels::host::kUpdatePieceElems, 1, 7, {"split_block8", "lion"}});
  const nlohmann::json& variants = event.at("figures").at("variants");
  EXPECT_EQ(variants.size(), 2u);
  EXPECT_TRUE(variants.contains("lion"));
  EXPECT_TRUE(variants.contains("split_block8"));
}

TEST(BenchAdam, RefusesOptionsThatItCannotMeasure) {
  constexpr std::int64_t kPiece = kernels::host::kUpdatePieceElems;
  for (const AdamBenchOptions& wrong :
       {AdamBenchOptions{0, 1, 7, {}}, AdamBenchOptions{kPiece + 1, 1, 7, {}},
        AdamBenchOptions{kPiece, 1, 6, {}}, AdamBenchOptions{kPiece, -1, 7, {}},
        AdamBenchOptions{kPiece, 1, 7, {"f64"}}}) {
    EXPECT_THROW(run_adam_bench(wrong), InputError);
  }
}

// The yardstick passes every byte of every array that is read and written, and writes every byte of
// a weight that is not read.
TEST(BenchAdam, TrafficPassesOverEveryByte) {
  const std::int64_t elems = 2 * kernels::host::kUpdatePieceElems;
  for (const AdamVariant& variant : adam_variants()) {
    const auto array = [&](StateKind kind) {
      const kernels::StateLayout layout = kernels::state_layout(variant.options, kind);
      const bool absent = layout.extent == kernels::StateExtent::kAbsent;
      return std::vector<std::uint8_t>(
          absent ? 0 : bytes_of(layout.dtype, static_cast<std::uint64_t>(elems)));
    };
    std::vector<std::uint8_t> grad(bytes_of(variant.grad, static_cast<std::uint64_t>(elems)));
    std::vector<std::uint8_t> weight(
        bytes_of(variant.options.weight, static_cast<std::uint64_t>(elems)));
    std::vector<std::uint8_t> states[] = {array(StateKind::kMaster), array(StateKind::kMoment1),
                                          array(StateKind::kMoment2)};
    const auto data = [](std::vector<std::uint8_t>& bytes) {
      return bytes.empty() ? nullptr : bytes.data();
    };
    kernels::UpdateBuffers buffers;
    buffers.grad = grad.data();
    buffers.grad_dtype = variant.grad;
    buffers.weight = weight.data();
    buffers.master = data(states[0]);
    buffers.moment1 = data(states[1]);
    buffers.moment2 = data(states[2]);
    buffers.elems = elems;
    adam_traffic(kernels::host::Parallel(2), variant.options, buffers, 0x81818181u);
    const auto passed = [](std::uint8_t byte) { return byte == 0x81; };
    EXPECT_TRUE(std::all_of(weight.begin(), weight.end(), passed)) << variant.name;
    for (const auto& state : states) {
      EXPECT_TRUE(std::all_of(state.begin(), state.end(), passed)) << variant.name;
    }
    EXPECT_TRUE(std::none_of(grad.begin(), grad.end(), passed)) << variant.name;
  }
}

}  // namespace
}  // namespace sluice::bench
