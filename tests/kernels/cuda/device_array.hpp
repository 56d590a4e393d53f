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
#include "tests/support/dtype_array.hpp"

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

// `elems` numbers of type T on the device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t elems) : bytes_(static_cast<std::size_t>(elems) * sizeof(T)) {}
  explicit DeviceArray(const std::vector<T>& values)
      : bytes_(values.data(), values.size() * sizeof(T)) {}

  T* data() { return static_cast<T*>(bytes_.data()); }
  const T* data() const { return static_cast<const T*>(bytes_.data()); }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size() / sizeof(T)); }
  std::vector<T> read() const {
    std::vector<T> values(bytes_.size() / sizeof(T));
    bytes_.read(values.data());
    return values;
  }

 private:
  DeviceBytes bytes_;
};

// The same of an act dtype, on the device: made from a host::DTypeArray, read back as one.
// offset_elems: elements before the first one, so that it is not aligned to 256 bytes.
class DeviceDTypeArray {
 public:
  DeviceDTypeArray(DType type, std::int64_t elems, std::int64_t offset_elems = 0)
      : DeviceDTypeArray(
            host::DTypeArray(type, std::vector<float>(static_cast<std::size_t>(elems), kUnwritten)),
            offset_elems) {}
  explicit DeviceDTypeArray(const host::DTypeArray& values, std::int64_t offset_elems = 0)
      : type_(values.type()),
        elems_(values.size()),
        offset_bytes_(static_cast<std::size_t>(offset_elems) * dtype_bytes(type_)),
        bytes_(offset_bytes_ + elems_ * dtype_bytes(type_)) {
    copy_bytes(data(), values.data(), elems_ * dtype_bytes(type_));
  }

  void* data() { return static_cast<std::byte*>(bytes_.data()) + offset_bytes_; }
  const void* data() const { return static_cast<const std::byte*>(bytes_.data()) + offset_bytes_; }
  DType type() const { return type_; }
  std::int64_t size() const { return static_cast<std::int64_t>(elems_); }
  host::DTypeArray read() const {
    host::DTypeArray values(type_, size());
    copy_bytes(values.data(), data(), elems_ * dtype_bytes(type_));
    return values;
  }

 private:
  static constexpr float kUnwritten = -12345.0f;
  DType type_;
  std::size_t elems_;
  std::size_t offset_bytes_;
  DeviceBytes bytes_;
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
