// The backend of a run: a device, kernels for it, and kernels for the host's own lane (the
// optimizer of state in host memory). It is made once, from the configuration. Nothing else in the
// engine knows which device it works on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "device/device.hpp"
#include "engine/config/config.hpp"
#include "kernels/kernels.hpp"

namespace sluice::train {

struct Backend {
  std::string name;         // "host" or "cuda"
  std::string device_name;  // of a GPU; empty: the host itself
  // Memory of the device that nobody uses; none: the device's memory is the host's.
  std::optional<std::uint64_t> device_memory_bytes;
  // A device with this cap. Throws InputError, DeviceError.
  std::function<std::unique_ptr<device::Device>(std::uint64_t capacity_bytes)> make_device;
  std::unique_ptr<kernels::Kernels> device_kernels;  // run inside Stream::launch
  std::unique_ptr<kernels::Kernels>
      host_kernels;  // run on the optimizer lane's thread, on host memory
};

// Replaces "auto" by "cuda" if this build and this machine have a usable GPU and
// memory.link_bandwidth and memory.link_latency simulate no link, else by "host".
// Throws InputError if "cuda" is requested but unavailable; the message gives the reason.
void settle_backend(config::Config& config);

// Preconditions: memory.backend is settled, and train.threads (for the host kernels) is above 0.
// `config` need not outlive the backend.
Backend make_backend(const config::Config& config);

}  // namespace sluice::train
