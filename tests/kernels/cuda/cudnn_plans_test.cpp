// cuDNN compiles our graphs for GPUs that are only described: nothing is executed.
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "kernels/cuda/cudnn_graphs.hpp"

namespace sluice::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

struct DescribedGpu {
  const char* name;
  const char* capability;
  int version, multiprocessors, shared_bytes, blocks, threads;  // a multiprocessor's
};
constexpr DescribedGpu kGpus[] = {{"a100", "8.0", 800, 108, 166912, 32, 2048},
                                  {"h200", "9.0", 900, 132, 232448, 32, 2048},
                                  {"b200", "10.0", 1000, 148, 232448, 32, 2048},
                                  {"rtx5090", "12.0", 1200, 170, 101376, 24, 1536}};

// Prints the GPU in failures, and in ctest's list of tests.
void PrintTo(const DescribedGpu& gpu, std::ostream* out) {
  *out << gpu.name;
}

// The GPU in JSON, as cuDNN serialises it.
std::string json_of(const DescribedGpu& gpu) {
  const auto field = [](const char* name, const std::string& value) {
    return std::string(", \"") + name + "\": " + value;
  };
  std::string text = "{\"deviceVer\": " + std::to_string(gpu.version);
  text += field("driverVer", "13000") + field("deviceName", std::string("\"") + gpu.name + "\"");
  text += field("multiProcessorCount", std::to_string(gpu.multiprocessors));
  text += field("maxSharedMemoryPerBlockOptin", std::to_string(gpu.shared_bytes));
  text += field("maxCtasPerSM", std::to_string(gpu.blocks));
  text += field("maxThreadsPerSM", std::to_string(gpu.threads));
  text += field("maxGridSize", "[2147483647, 65535, 65535]");
  text += field("maxBlockSize", "[1024, 1024, 64]");
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{{"regsPerBlock", "65536"},
                                                        {"warpSize", "32"},
                                                        {"maxSharedMemoryPerBlock", "49152"},
                                                        {"reservedSharedMemoryPerBlock", "1024"},
                                                        {"maxRegistersPerSM", "65536"},
                                                        {"maxThreadsPerBlock", "1024"},
                                                        {"pciDeviceId", "0"},
                                                        {"isTccDriver", "0"},
                                                        {"supportCoopLaunch", "1"},
                                                        {"smClockRateKHz", "1980000"},
                                                        {"memClockRateKHz", "3201000"},
                                                        {"l2CacheSize", "62914560"},
                                                        {"totalGlobalMem", "85899345920"},
                                                        {"cudaDeviceId", "0"}}) {
    text += field(name, value);
  }
  return text + "}";
}

class CudnnPlans : public ::testing::TestWithParam<DescribedGpu> {
 protected:
  void SetUp() override {
    if (!open_cudnn()) GTEST_SKIP() << "libcudnn.so.9 is not installed";
    ASSERT_EQ(::setenv("SLUICE_DESCRIBED_GPU", GetParam().capability, 1), 0);
    const std::string json = json_of(GetParam());
    std::vector<std::uint8_t> bytes(json.begin(), json.end());
    bytes.push_back(0);
    gpu_ = std::make_shared<fe::DeviceProperties>();
    fe::error_t error = gpu_->deserialize(bytes);
    ASSERT_TRUE(error.is_good()) << error.get_message();
  }

  void expect_kernels(fe::graph::Graph& graph, std::uint64_t given_bytes) {
    graph.set_device_properties(gpu_);
    std::uint64_t bytes = 0;
    EXPECT_EQ(compile_graph(graph, nullptr, bytes), "");
    EXPECT_LE(bytes, given_bytes);
  }

  void expect_both_passes(const AttentionShape& shape) {
    SCOPED_TRACE(std::to_string(shape.batch) + " x " + std::to_string(shape.time) + ", heads " +
                 std::to_string(shape.heads) + " and " + std::to_string(shape.kv_heads) + " of " +
                 std::to_string(shape.head_dim));
    const std::uint64_t given_bytes = fused_attention_bytes(shape);
    expect_kernels(*forward_graph(shape), given_bytes);
    const auto slice = backward_slice(shape);
    ASSERT_TRUE(slice.has_value());
    expect_kernels(*backward_graph(shape, *slice), given_bytes);
  }

  std::shared_ptr<fe::DeviceProperties> gpu_;
};

TEST_P(CudnnPlans, ModelsThatPeopleTrain) {
  expect_both_passes({8, 2048, 16, 16, 128, DType::kBF16});
  expect_both_passes({1, 8192, 32, 8, 128, DType::kBF16});
  expect_both_passes({4, 1024, 12, 12, 64, DType::kF16});
}

TEST_P(CudnnPlans, OddShapes) {
  expect_both_passes({3, 100, 6, 2, 64, DType::kBF16});
  expect_both_passes({1, 63, 3, 3, 80, DType::kBF16});
  expect_both_passes({2, 1000, 8, 1, 40, DType::kBF16});
  expect_both_passes({1, 4095, 5, 5, 96, DType::kBF16});
  // These shapes have the most padding for their size.
  expect_both_passes({2, 320, 16, 16, 64, DType::kBF16});
  expect_both_passes({1, 4160, 32, 8, 128, DType::kBF16});
  expect_both_passes({8, 128, 16, 4, 128, DType::kBF16});
}

// The described driver has no GPU that could work: the fallback is known before the first pass.
TEST(Cudnn, IsNotNamedWhereItGetsNoHandle) {
  if (!open_cudnn()) GTEST_SKIP() << "libcudnn.so.9 is not installed";
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr);
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  ASSERT_NE(init(0), 0) << "not the described GPU's driver: is LD_LIBRARY_PATH set as by ctest?";
  std::string told;
  set_log_sink([&](LogLevel, const std::string& line) { told += line; });
  EXPECT_EQ(open_fused_attention(), nullptr);
  set_log_sink({});
  EXPECT_NE(told.find("cudnnCreate: "), std::string::npos) << told;
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans, ::testing::ValuesIn(kGpus),
                         [](const auto& gpu) { return std::string(gpu.param.name); });

}  // namespace
}  // namespace sluice::kernels::cuda
