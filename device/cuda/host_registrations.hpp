// Host pages that the driver knows, which it copies to and from by DMA.
//
// The storage engine registers the same pages with io_uring. Neither sees the other: each pins the
// pages for itself, and both let go of them before they are unmapped. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.hpp"
#include "device/cuda/cuda_context.hpp"

namespace sluice::device {

class HostRegistrations {
 public:
  explicit HostRegistrations(std::shared_ptr<const CudaContext> context);
  // What is registered still, its owner has leaked; the driver forgets it.
  ~HostRegistrations();
  HostRegistrations(const HostRegistrations&) = delete;
  HostRegistrations& operator=(const HostRegistrations&) = delete;

  // data page-aligned, nothing of it registered (else InternalError). Throws DeviceError.
  void add(void* data, std::uint64_t bytes);
  void remove(void* data) noexcept;

  // How many of the bytes from `data` on lie on its side of the next border of a registration: the
  // driver refuses a copy that is partly in one. At most `bytes`.
  std::uint64_t bytes_to_border(const void* data, std::uint64_t bytes) const;

  std::uint64_t calls() const;
  std::uint64_t peak_bytes() const;

 private:
  const std::shared_ptr<const CudaContext> context_;
  mutable Mutex mutex_;
  std::map<std::uintptr_t, std::uint64_t> registered_
      SLUICE_GUARDED_BY(mutex_);  // begin to bytes; disjoint
  std::uint64_t bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t calls_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::device
