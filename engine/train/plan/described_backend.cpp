// The host's backend, and those of machines that are only described. Apart from the others: a
// program that plans for described machines needs no driver and no kernels of a GPU.
#include "base/error.hpp"
#include "device/host/host_device.hpp"
#include "engine/planner/price/described_kernels.hpp"
#include "engine/train/plan/backend.hpp"

namespace sluice::train {
namespace {

// A debug build reports every use of device memory that no event orders.
#ifdef NDEBUG
constexpr bool kDetectRaces = false;
#else
constexpr bool kDetectRaces = true;
#endif

}  // namespace

std::unique_ptr<kernels::Kernels> make_lane_kernels(const config::Config& config) {
  return kernels::make_host_kernels(
      {static_cast<int>(config.train.threads), kernels::Bf16Gemm::kAuto});
}

Backend make_host_backend(const config::Config& config) {
  Backend backend;
  backend.name = "host";
  device::HostDeviceOptions options;
  options.link_bandwidth_bytes_per_s = config.memory.link_bandwidth_bytes_per_s;
  options.link_latency_s = config.memory.link_latency_s;
  options.detect_races = kDetectRaces;
  backend.make_device = [options](std::uint64_t capacity_bytes) {
    device::HostDeviceOptions capped = options;
    capped.capacity_bytes = capacity_bytes;
    return device::make_host_device(capped);
  };
  backend.device_kernels = make_lane_kernels(config);
  backend.host_kernels = make_lane_kernels(config);
  return backend;
}

bool makes_up_link(const config::Config& config) {
  return config.memory.link_bandwidth_bytes_per_s > 0 || config.memory.link_latency_s > 0;
}

void refuse_cuda(const std::string& missing) {
  throw InputError("memory.backend = \"cuda\" cannot be had: " + missing +
                   "; use \"host\" or \"auto\"");
}

void settle_described_backend(config::Config& config, const planner::HardwareProfile& hardware) {
  if (config.memory.backend == config::Config::Backend::kCuda && makes_up_link(config)) {
    refuse_cuda(kMadeUpLink);
  }
  if (config.memory.backend != config::Config::Backend::kAuto) return;
  config.memory.backend = hardware.gpu && !makes_up_link(config) ? config::Config::Backend::kCuda
                                                                 : config::Config::Backend::kHost;
}

Backend make_described_backend(const config::Config& config,
                               const planner::HardwareProfile& hardware) {
  SLUICE_CHECK(config.memory.backend != config::Config::Backend::kAuto && config.train.threads > 0);
  if (config.memory.backend == config::Config::Backend::kHost) return make_host_backend(config);
  Backend backend;
  backend.name = "cuda";
  backend.device_name = hardware.gpu ? hardware.gpu->cpu_name : "an unmeasured GPU";
  backend.make_device = [](std::uint64_t) -> std::unique_ptr<device::Device> {
    throw InternalError("a device that is only described cannot be made");
  };
  backend.device_kernels = std::make_unique<planner::DescribedKernels>(make_lane_kernels(config));
  backend.host_kernels = make_lane_kernels(config);
  return backend;
}

}  // namespace sluice::train
