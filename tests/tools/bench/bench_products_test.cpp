#include "tools/bench/bench_products.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "device/host/host_device.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/bench/bench_table.hpp"

namespace sluice::bench {
namespace {

class BenchProducts : public ::testing::Test {
 protected:
  ProductBenchOptions options() {
    ProductBenchOptions options;
    options.device = device_.get();
    options.kernels = kernels_.get();
    options.tokens = 64;
    options.hidden = 32;
    options.heads = 2;
    options.time = 32;
    options.rounds = 7;
    return options;
  }
  // A shell script in the interpreter's place: introduces itself, then answers by `answer`.
  std::string python(const std::string& introduction, const std::string& answer) {
    const std::filesystem::path path = directory_.path() / "python";
    std::ofstream(path) << "#!/bin/sh\necho '" << introduction << "'\n"
                        << "while read -r line; do\n"
                        << "name=$(echo \"$line\" | sed 's/.*\"run\":\"\\([^\"]*\\)\".*/\\1/')\n"
                        << answer << "\ndone\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path.string();
  }
  static constexpr const char* kIntroduction = R"({"protocol":1,"versions":"torch 9"})";
  // A second for every call.
  static constexpr const char* kAnswer = R"(echo "{\"ran\":\"$name\",\"seconds\":1}")";

  testing::TempDirectory directory_;
  std::unique_ptr<device::Device> device_ = device::make_host_device({});
  std::unique_ptr<kernels::Kernels> kernels_ = kernels::make_host_kernels({.threads = 1});
};

TEST_F(BenchProducts, CountsTheOperationsOfEachProduct) {
  ProductBenchOptions with_peer = options();
  with_peer.peers_python = python(kIntroduction, kAnswer);
  // The peer takes a second for each, so its rate is the number of operations.
  const nlohmann::json gemm = run_gemm_bench(with_peer)["figures"];
  for (const std::string name : {"forward", "input_gradient", "weight_gradient"}) {
    EXPECT_DOUBLE_EQ(gemm["products"][name]["peer_tflops"].get<double>(),
                     2.0 * 64 * 32 * 128 / 1e12);
    EXPECT_NEAR(gemm["products"][name]["ratio"].get<double>(),
                gemm["products"][name]["tflops"].get<double>() / (2.0 * 64 * 32 * 128 / 1e12),
                0.5 * gemm["products"][name]["ratio"].get<double>());
  }
  const nlohmann::json event = run_attention_bench(with_peer);
  const nlohmann::json& attention = event["figures"];
  EXPECT_EQ(attention["batch"], 2);
  for (const auto& [name, products] : {std::pair("forward", 2.0), std::pair("backward", 5.0),
                                       std::pair("forward_backward", 7.0)}) {
    EXPECT_DOUBLE_EQ(attention["products"][name]["peer_tflops"].get<double>(),
                     products * 64 * 32 * 32 / 1e12);
  }
  EXPECT_TRUE(testing::holds(bench_table(event), "torch 9"));
  EXPECT_EQ(device_->counters().live_bytes, 0u);
}

TEST_F(BenchProducts, StandsAloneWithoutAPeer) {
  ProductBenchOptions alone = options();
  alone.dtype = DType::kF32;
  const nlohmann::json event = run_gemm_bench(alone);
  EXPECT_GT(event["figures"]["products"]["forward"]["tflops"].get<double>(), 0);
  EXPECT_FALSE(event["figures"].contains("peer"));
  EXPECT_TRUE(testing::holds(bench_table(event), "weight_gradient"));
}

TEST_F(BenchProducts, APeerThatAnswersWronglyIsAnError) {
  const auto run = [this](const std::string& introduction, const std::string& answer) {
    ProductBenchOptions with_peer = options();
    with_peer.peers_python = python(introduction, answer);
    run_gemm_bench(with_peer);
  };
  EXPECT_THROW(run(R"({"protocol":2,"versions":"torch 9"})", kAnswer), Error);
  EXPECT_THROW(run(R"({"error":"torch sees no GPU"})", kAnswer), Error);
  EXPECT_THROW(run("torch", kAnswer), Error);
  EXPECT_THROW(run(kIntroduction, R"(echo "{\"ran\":\"other\",\"seconds\":1}")"), Error);
  EXPECT_THROW(run(kIntroduction, R"(echo "{\"ran\":\"$name\",\"seconds\":0}")"), Error);
  EXPECT_THROW(run(kIntroduction, "exit 1"), Error);
}

TEST_F(BenchProducts, RefusesOptionsThatItCannotMeasure) {
  ProductBenchOptions bad = options();
  bad.heads = 3;
  EXPECT_THROW(run_attention_bench(bad), InputError);
  bad = options();
  bad.time = 7;
  EXPECT_THROW(run_attention_bench(bad), InputError);
  bad = options();
  bad.rounds = 6;
  EXPECT_THROW(run_gemm_bench(bad), InputError);
  bad = options();
  bad.dtype = DType::kU8;
  EXPECT_THROW(run_gemm_bench(bad), InputError);
}

}  // namespace
}  // namespace sluice::bench
