// The state that one host device shares with its streams; it lives until the last of them is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "device/host/host_device.hpp"
#include "device/host/host_link.hpp"
#include "device/host/host_memory.hpp"
#include "device/host/race_detector.hpp"

namespace sluice::device {

struct HostRuntime {
  explicit HostRuntime(const HostDeviceOptions& options)
      : memory(options.capacity_bytes, kPageBytes),
        upload(options),
        download(options),
        races(options.detect_races ? std::make_unique<RaceDetector>() : nullptr) {}

  // Copies now, taking the time of the link, and counts the bytes. Throws TimeoutError.
  void copy(void* destination, const void* source, std::uint64_t bytes, CopyKind kind);

  HostMemory memory;
  HostLink upload;    // host to device
  HostLink download;  // device to host
  std::array<std::atomic<std::uint64_t>, kCopyKindCount> copied_bytes{};
  const std::unique_ptr<RaceDetector> races;  // null: off
};

// The clock of the device: steady nanoseconds.
std::int64_t host_now_ns();

}  // namespace sluice::device
