// The state that one CUDA device shares with its streams and events; it lives until the last of
// them is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/cuda/cuda_clock.hpp"
#include "device/cuda/cuda_context.hpp"
#include "device/cuda/host_registrations.hpp"
#include "device/device.hpp"

namespace sluice::device {

struct CudaRuntime {
  explicit CudaRuntime(std::shared_ptr<const CudaContext> made_in)
      : context(std::move(made_in)), clock(context), registrations(context) {}
  const CudaDriver& driver() const { return context->driver(); }

  const std::shared_ptr<const CudaContext> context;
  CudaClock clock;
  HostRegistrations registrations;
  // The bytes of copies known to be completed. Relaxed: totals for reports.
  std::array<std::atomic<std::uint64_t>, kCopyKindCount> copied_bytes{};
};

}  // namespace sluice::device
