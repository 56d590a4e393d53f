// Host pages registered with the driver, so that it copies to and from them by DMA.
//
// The storage engine registers the same pages with io_uring. The two registrations are independent:
// each pins the pages, and both must end before the pages are unmapped. Thread-safe.
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
  // Unregisters leaked pages.
  ~HostRegistrations();
  HostRegistrations(const HostRegistrations&) = delete;
  HostRegistrations& operator=(const HostRegistrations&) = delete;

  // data is page-aligned, and no part of it is registered (else InternalError). Throws DeviceError.
  void add(void* data, std::uint64_t bytes);
  void remove(void* data) noexcept;

  // The number of bytes from `data` up to the next border of a registration, at most `bytes`. The
  // driver refuses a copy that is partly in a registration, so copies are split there.
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
