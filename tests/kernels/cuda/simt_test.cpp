// Every kernel relies on these operations, on a GPU and on the emulated one: calls that warps and
// blocks make together, the tensor core's fragments, asynchronous copies.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/kernels/cuda/cuda_backend.hpp"
#include "tests/kernels/cuda/simt_kernels.hpp"

namespace sluice::kernels::cuda {
namespace {

using CudaSimt = CudaKernelTest;

TEST_F(CudaSimt, WarpWideCallsExchangeLanes) {
  DeviceArray<WarpResults> device(std::vector<WarpResults>(64));
  warp_calls(device.data());
  const std::vector<WarpResults> results = device.read();
  for (int thread = 0; thread < 64; ++thread) {
    const WarpResults& r = results[static_cast<std::size_t>(thread)];
    const int lane = thread % 32, value = 100 + lane;
    EXPECT_EQ(r.from_lane_5, 105);
    EXPECT_EQ(r.from_lane_3_of_8, 100 + lane / 8 * 8 + 3);
    EXPECT_EQ(r.xor_9, 100 + (lane ^ 9));
    EXPECT_EQ(r.up_4, lane < 4 ? value : value - 4);
    EXPECT_EQ(r.down_4_of_16, lane % 16 >= 12 ? value : value + 4);
    EXPECT_EQ(r.odd_lanes, 0xaaaaaaaau);
    EXPECT_EQ(r.any_below_0, 0);
    EXPECT_NE(r.all_above_99, 0);
    EXPECT_EQ(r.sum, 3200.0f + 31.0f * 16.0f);
    EXPECT_EQ(r.from_lane_7_f64, 1.0 / 107);
  }
}

TEST_F(CudaSimt, BarriersOrderSharedMemory) {
  for (const int threads : {32, 64, 1024}) {
    std::vector<float> in(static_cast<std::size_t>(threads));
    std::iota(in.begin(), in.end(), 1.0f);
    const DeviceArray<float> device_in(in);
    DeviceArray<float> out(std::vector<float>(in.size(), -1.0f));
    DeviceArray<float> sums(std::vector<float>(in.size(), -1.0f));
    reverse_and_sum(device_in.data(), threads, out.data(), sums.data());
    EXPECT_EQ(out.read(), std::vector<float>(in.rbegin(), in.rend()));
    const float sum = static_cast<float>(threads) * static_cast<float>(threads + 1) / 2.0f;
    EXPECT_EQ(sums.read(), std::vector<float>(in.size(), sum));
  }
}

// Products of whole numbers below 2^8 are exact however they are added.
TEST_F(CudaSimt, TensorCoreMultipliesEveryFragment) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool transposed : {false, true}) {
      std::vector<float> a(256), b(256), d(256);
      for (std::size_t i = 0; i < 256; ++i) {
        a[i] = static_cast<float>((i * 37 + i / 16) % 61) - 30.0f;
        b[i] = static_cast<float>((i * 53 + i / 16 * 5) % 59) - 29.0f;
        d[i] = static_cast<float>(i);
      }
      const auto halves = [&](const std::vector<float>& values) {
        std::vector<std::uint16_t> bits(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          bits[i] = type == DType::kBF16 ? bf16_from_float(values[i]).bits
                                         : f16_from_float(values[i]).bits;
        }
        return bits;
      };
      const DeviceArray<std::uint16_t> device_a(halves(a)), device_b(halves(b));
      DeviceArray<float> device_d(d);
      tile_product(device_a.data(), device_b.data(), transposed, type, device_d.data());
      const std::vector<float> got = device_d.read();
      for (std::size_t row = 0; row < 16; ++row) {
        for (std::size_t column = 0; column < 16; ++column) {
          float want = d[row * 16 + column];
          for (std::size_t k = 0; k < 16; ++k) {
            want += a[row * 16 + k] * b[transposed ? column * 16 + k : k * 16 + column];
          }
          EXPECT_EQ(got[row * 16 + column], want) << row << ", " << column;
        }
      }
    }
  }
}

TEST_F(CudaSimt, AsynchronousCopiesLandInGroups) {
  std::vector<std::uint16_t> in(16);
  std::iota(in.begin(), in.end(), std::uint16_t{100});
  for (const int valid : {0, 6, 16}) {
    const DeviceArray<std::uint16_t> device_in(in);
    DeviceArray<std::uint16_t> out(std::vector<std::uint16_t>(16, 0xffff));
    copy_in_groups(device_in.data(), valid, out.data());
    std::vector<std::uint16_t> want = in;
    std::fill(want.begin() + 8 + valid / 2, want.end(), std::uint16_t{0});
    EXPECT_EQ(out.read(), want) << valid;
  }
}

TEST_F(CudaSimt, AtomicsCountEveryThread) {
  DeviceArray<unsigned> counters(std::vector<unsigned>{0, 0});
  count_threads(7, 96, counters.data());
  EXPECT_EQ(counters.read(), (std::vector<unsigned>{7 * 96, 7 * 3 * 496}));
}

}  // namespace
}  // namespace sluice::kernels::cuda
