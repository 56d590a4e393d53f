// Memory that kernels of kernels/cuda work on, in both builds of their tests: the GPU's, or the
// host's where kernels are emulated. It is exactly as long as asked for, so that AddressSanitizer
// sees reads and writes past it.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace sluice::kernels::cuda {

#ifdef SLUICE_CUDA_EMULATION

// Why there is nothing to run on; empty: there is.
inline std::string missing_gpu() {
  return {};
}
inline void* allocate_bytes(std::size_t bytes) {
  void* data = nullptr;
  if (::posix_memalign(&data, 256, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return data;
}
inline void free_bytes(void* data) {
  std::free(data);
}
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

#else

inline std::string missing_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(status);
  return count == 0 ? "no GPU" : "";
}
inline void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw DeviceError(cudaGetErrorString(status));
}
inline void* allocate_bytes(std::size_t bytes) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes == 0 ? 1 : bytes));
  return data;
}
inline void free_bytes(void* data) {
  static_cast<void>(cudaFree(data));
}
// Waits for all that was queued on the default stream.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

#endif

// Bytes of the device, 256-byte aligned, all ones (NaNs) at first. Copies wait for queued kernels.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) : data_(allocate_bytes(bytes)), bytes_(bytes) {
    const std::vector<std::uint8_t> ones(bytes, 0xff);
    copy_bytes(data_, ones.data(), bytes);
  }
  DeviceBytes(const void* from, std::size_t bytes) : data_(allocate_bytes(bytes)), bytes_(bytes) {
    copy_bytes(data_, from, bytes);
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() {
    if (data_ != nullptr) free_bytes(data_);
  }

  void* data() { return data_; }
  const void* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  void read(void* to) const { copy_bytes(to, data_, bytes_); }

 private:
  void* data_;
  std::size_t bytes_;
};

// Skips where there is no GPU to run on. Kernels are queued on the default stream.
class CudaKernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = missing_gpu();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

}  // namespace sluice::kernels::cuda
