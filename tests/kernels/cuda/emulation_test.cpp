// The emulated GPU finds the errors that hang a GPU, or that a GPU passes over in silence.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {
namespace {

// Returns the error that this kernel's launch throws; empty if there is none.
template <class... P, class... A>
std::string failure_of(unsigned threads, std::size_t shared_bytes, void (*kernel)(P...),
                       A... args) {
  try {
    launch(nullptr, 1, threads, shared_bytes, kernel, args...);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

__global__ void early_return_kernel() {
  if (threadIdx.x >= 40) return;
  __syncthreads();
}

TEST(CudaEmulation, ThreadsThatWaitForOnesThatHaveEnded) {
  const std::string message = failure_of(64, 0, &early_return_kernel);
  EXPECT_TRUE(says(message, "24 have ended")) << message;
  EXPECT_TRUE(says(message, "40 wait in __syncthreads")) << message;
  EXPECT_TRUE(says(message, "early_return_kernel")) << message;
}

__global__ void two_barriers_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(CudaEmulation, ThreadsThatWaitInDifferentBarriers) {
  const std::string message = failure_of(64, 0, &two_barriers_kernel);
  EXPECT_TRUE(says(message, "different barriers")) << message;
}

__global__ void half_a_warp_kernel(float* out) {
  if (threadIdx.x < 16) *out = warp_sum(1.0f);
}
__global__ void part_of_a_mask_kernel(int* out) {
  *out = __shfl_sync(0x0000ffffu, 1, 0);
}

TEST(CudaEmulation, WarpWideCallsWithoutAllLanes) {
  float sum = 0.0f;
  EXPECT_TRUE(says(failure_of(32, 0, &half_a_warp_kernel, &sum), "16 wait in a warp-wide call"));
  int value = 0;
  EXPECT_TRUE(says(failure_of(32, 0, &part_of_a_mask_kernel, &value), "without all 32 lanes"));
  EXPECT_TRUE(says(failure_of(24, 0, &half_a_warp_kernel, &sum), "without all 32 lanes"));
}

__global__ void count_kernel(int* count) {
  __syncthreads();
  atomicAdd(count, 1);
}

TEST(CudaEmulation, GoesOnAfterAFailure) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(failure_of(64, 0, &early_return_kernel).empty());
    int count = 0;
    EXPECT_TRUE(failure_of(96, 0, &count_kernel, &count).empty());
    EXPECT_EQ(count, 96);
  }
}

__global__ void unwritten_shared_kernel(float* out) {
  *out = dynamic_shared<float>()[5];
}
__global__ void copy_without_wait_kernel(const float* in, float* out) {
  float* const shared = dynamic_shared<float>();
  shared[0] = 1.0f;
  copy_async_16(shared, in);
  copy_async_commit();
  *out = shared[0];
}

TEST(CudaEmulation, ReadsBeforeWritesGiveNans) {
  float out = 0.0f;
  EXPECT_TRUE(failure_of(1, 64, &unwritten_shared_kernel, &out).empty());
  EXPECT_TRUE(std::isnan(out));
  alignas(16) const float in[4] = {2.0f, 2.0f, 2.0f, 2.0f};
  out = 0.0f;
  EXPECT_TRUE(failure_of(1, 16, &copy_without_wait_kernel, &in[0], &out).empty());
  EXPECT_TRUE(std::isnan(out));
}

__global__ void misaligned_copy_kernel(const std::uint8_t* in) {
  copy_async_16(dynamic_shared<std::uint8_t>(), in + 1);
}

TEST(CudaEmulation, RefusesTheErrorsOfAGpu) {
  alignas(16) const std::uint8_t in[32] = {};
  EXPECT_TRUE(says(failure_of(1, 16, &misaligned_copy_kernel, &in[0]), "not aligned"));
  int count = 0;
  EXPECT_TRUE(says(failure_of(1025, 0, &count_kernel, &count), "invalid configuration"));
  EXPECT_TRUE(says(failure_of(0, 0, &count_kernel, &count), "invalid configuration"));
  EXPECT_TRUE(says(failure_of(32, 228 * 1024, &count_kernel, &count), "invalid configuration"));
  EXPECT_THROW(launch(nullptr, dim3(1, 65536), 1, 0, &count_kernel, &count), DeviceError);
  EXPECT_EQ(count, 0);
}

// Two threads race for one place; the order in which threads begin differs between blocks.
__global__ void race_kernel(int* last) {
  last[blockIdx.x] = static_cast<int>(threadIdx.x);
}

TEST(CudaEmulation, BlocksBeginTheirThreadsInDifferentOrders) {
  int last[2] = {};
  launch(nullptr, 2, 64, 0, &race_kernel, &last[0]);
  EXPECT_NE(last[0], last[1]);
}

}  // namespace
}  // namespace sluice::kernels::cuda
