#include "engine/train/backend.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/host/host_device.hpp"
#include "kernels/backend/cuda_kernels.hpp"

namespace sluice::train {
namespace {

// A debug build reports every use of device memory that no event orders.
#ifdef NDEBUG
constexpr bool kDetectRaces = false;
#else
constexpr bool kDetectRaces = true;
#endif

std::unique_ptr<kernels::Kernels> host_kernels(const config::Config& config) {
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
  backend.device_kernels = host_kernels(config);
  backend.host_kernels = host_kernels(config);
  return backend;
}

// This much device memory is left to the libraries and to the driver, which loads code at the first
// call.
constexpr std::uint64_t kLibraryBytes = 512 * kMiB;
constexpr int kOrdinal = 0;  // CUDA_VISIBLE_DEVICES says which GPU that is

// Why no GPU can be used here; empty: one can.
std::string cuda_missing() {
  const device::CudaSearch search = device::find_cuda_devices();
  if (search.devices.empty()) return search.missing;
  const device::CudaDeviceInfo& gpu = search.devices[kOrdinal];
  if (!gpu.virtual_memory) return gpu.name + " does not map physical memory into addresses";
  const std::string missing =
      kernels::cuda_kernels_missing(gpu.compute_major, gpu.compute_minor, gpu.driver_version);
  return missing.empty() ? missing : gpu.name + " cannot be used: " + missing;
}

Backend make_cuda_backend(const config::Config& config) {
  const device::CudaSearch search = device::find_cuda_devices();
  if (search.devices.empty()) throw InputError("memory.backend = \"cuda\": " + search.missing);
  Backend backend;
  backend.name = "cuda";
  backend.device_name = search.devices[kOrdinal].name;
  const std::uint64_t free_bytes = device::free_cuda_bytes(kOrdinal);
  backend.device_memory_bytes = free_bytes - std::min(free_bytes, kLibraryBytes);
  backend.make_device = [](std::uint64_t capacity_bytes) {
    return device::make_cuda_device({.ordinal = kOrdinal, .capacity_bytes = capacity_bytes});
  };
  backend.device_kernels = kernels::make_cuda_kernels({.ordinal = kOrdinal});
  backend.host_kernels = host_kernels(config);
  return backend;
}

}  // namespace

void settle_backend(config::Config& config) {
  if (config.memory.backend == config::Config::Backend::kHost) return;
  std::string missing = cuda_missing();
  if (config.memory.link_bandwidth_bytes_per_s > 0 || config.memory.link_latency_s > 0) {
    missing =
        "memory.link_bandwidth and memory.link_latency make up a link, which only the host "
        "device has";
  }
  if (config.memory.backend == config::Config::Backend::kAuto) {
    config.memory.backend =
        missing.empty() ? config::Config::Backend::kCuda : config::Config::Backend::kHost;
  } else if (!missing.empty()) {
    throw InputError("memory.backend = \"cuda\" cannot be had: " + missing +
                     "; use \"host\" or \"auto\"");
  }
}

Backend make_backend(const config::Config& config) {
  SLUICE_CHECK(config.memory.backend != config::Config::Backend::kAuto && config.train.threads > 0);
  return config.memory.backend == config::Config::Backend::kCuda ? make_cuda_backend(config)
                                                                 : make_host_backend(config);
}

}  // namespace sluice::train
