// A range of addresses that costs memory only where it is written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace sluice::kernels::host {

// Zero pages of the kernel until they are written.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  SparseMemory(SparseMemory&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, MAP_FAILED)) {}
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool whole() const { return data_ != MAP_FAILED; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace sluice::kernels::host
