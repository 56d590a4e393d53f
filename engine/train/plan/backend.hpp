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
#include "engine/planner/price/hardware_profile.hpp"
#include "kernels/kernels.hpp"

namespace sluice::train {

struct Backend {
  std::string name;         // "host" or "cuda"
  std::string device_name;  // of a GPU; empty: the host itself
  std::string gpu_missing;  // why "auto" took the host; empty: it did not
  // Memory of the device that nobody uses; none: the device's memory is the host's.
  std::optional<std::uint64_t> device_memory_bytes;
  // A device with this cap. Throws InputError, DeviceError.
  std::function<std::unique_ptr<device::Device>(std::uint64_t capacity_bytes)> make_device;
  std::unique_ptr<kernels::Kernels> device_kernels;  // run inside Stream::launch
  std::unique_ptr<kernels::Kernels>
      host_kernels;  // run on the optimizer lane's thread, on host memory
};

// Replaces "auto" by "cuda" if this build and this machine have a usable GPU and
// memory.link_bandwidth and memory.link_latency simulate no link, else by "host" with the reason as
// the result. Throws InputError if "cuda" is requested but unavailable; the message gives the
// reason.
std::string settle_backend(config::Config& config);

// Whose GPU a backend is: the ranks of a machine take its GPUs in turn.
struct DeviceShare {
  int local_rank = 0;  // of this process on its machine
  int ranks = 1;       // that use the same GPU; each gets as much of its memory
  // Why NCCL cannot join the GPUs of all ranks; empty: it can.
  std::string nccl_obstacle;
};
// The PCI address of a rank's GPU; empty if there is no GPU.
std::string find_gpu_of(int local_rank);

// Preconditions: memory.backend is settled, and train.threads (for the host kernels) is above 0.
// `config` need not outlive the backend.
Backend make_backend(const config::Config& config, const DeviceShare& share = {});

// The host as the device. The kernels of the optimizer lane are the host's on every backend.
Backend make_host_backend(const config::Config& config);
std::unique_ptr<kernels::Kernels> make_lane_kernels(const config::Config& config);
// Whether the configuration simulates a link, which only the host device has.
bool makes_up_link(const config::Config& config);
inline constexpr const char* kMadeUpLink =
    "memory.link_bandwidth and memory.link_latency make up a link, which only the host device has";
[[noreturn]] void refuse_cuda(const std::string& missing);

// Settles the backend of a machine that is only described: no GPU, driver or CUDA library is asked
// for anything. "auto" becomes "cuda" where the profile has a GPU and no link is made up.
void settle_described_backend(config::Config& config, const planner::HardwareProfile& hardware);
// A backend to plan with; it makes no device (InternalError). A GPU's kernels only know the sizes
// of workspaces (planner/described_kernels.hpp). Arguments as above; both may go.
Backend make_described_backend(const config::Config& config,
                               const planner::HardwareProfile& hardware);

}  // namespace sluice::train
