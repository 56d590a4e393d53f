#include "engine/train/plan/backend.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/cuda/cuda_device.hpp"
#include "kernels/backend/cuda_kernels.hpp"

namespace sluice::train {
namespace {

// This much device memory is left to the libraries and to the driver, which loads code at the first
// call.
constexpr std::uint64_t kLibraryBytes = 512 * kMiB;

// CUDA_VISIBLE_DEVICES says which GPUs a process has.
const device::CudaDeviceInfo& gpu_of(const device::CudaSearch& search, int local_rank) {
  return search.devices[static_cast<std::size_t>(local_rank) % search.devices.size()];
}

// Why no GPU can be used here; empty: one can.
std::string cuda_missing() {
  const device::CudaSearch search = device::find_cuda_devices();
  if (search.devices.empty()) return search.missing;
  const device::CudaDeviceInfo& gpu = search.devices.front();
  if (!gpu.virtual_memory) return gpu.name + " does not map physical memory into addresses";
  const std::string missing =
      kernels::cuda_kernels_missing(gpu.compute_major, gpu.compute_minor, gpu.driver_version);
  return missing.empty() ? missing : gpu.name + ": " + missing;
}

Backend make_cuda_backend(const config::Config& config, const DeviceShare& share) {
  const device::CudaSearch search = device::find_cuda_devices();
  if (search.devices.empty()) throw InputError("memory.backend = \"cuda\": " + search.missing);
  const device::CudaDeviceInfo& gpu = gpu_of(search, share.local_rank);
  Backend backend;
  backend.name = "cuda";
  backend.device_name = gpu.name;
  const std::uint64_t free_bytes =
      device::free_cuda_bytes(gpu.ordinal) / static_cast<std::uint64_t>(share.ranks);
  backend.device_memory_bytes = free_bytes - std::min(free_bytes, kLibraryBytes);
  backend.make_device = [ordinal = gpu.ordinal](std::uint64_t capacity_bytes) {
    return device::make_cuda_device({.ordinal = ordinal, .capacity_bytes = capacity_bytes});
  };
  backend.device_kernels = kernels::make_cuda_kernels({.ordinal = gpu.ordinal});
  backend.host_kernels = make_lane_kernels(config);
  return backend;
}

}  // namespace

std::string settle_backend(config::Config& config) {
  if (config.memory.backend == config::Config::Backend::kHost) return {};
  std::string missing = cuda_missing();
  if (makes_up_link(config)) missing = kMadeUpLink;
  if (config.memory.backend == config::Config::Backend::kAuto) {
    config.memory.backend =
        missing.empty() ? config::Config::Backend::kCuda : config::Config::Backend::kHost;
  } else if (!missing.empty()) {
    refuse_cuda(missing);
  }
  return missing;
}

std::string find_gpu_of(int local_rank) {
  const device::CudaSearch search = device::find_cuda_devices();
  return search.devices.empty() ? std::string() : gpu_of(search, local_rank).pci_bus_id;
}

Backend make_backend(const config::Config& config, const DeviceShare& share) {
  SLUICE_CHECK(config.memory.backend != config::Config::Backend::kAuto && config.train.threads > 0);
  return config.memory.backend == config::Config::Backend::kCuda ? make_cuda_backend(config, share)
                                                                 : make_host_backend(config);
}

}  // namespace sluice::train
