// An allocator must keep the laws of these devices, and queued work may touch their memory: the
// host device, which detects races, and the CUDA device over the simulated driver, which has the
// mappings and queues of a GPU.
#pragma once

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/device.hpp"
#include "device/host/host_device.hpp"

namespace sluice::allocator {

struct DeviceUnderTest {
  std::string name;
  std::string missing;  // why this machine or build does not have it; empty: it does
  std::function<std::unique_ptr<device::Device>(std::uint64_t capacity_bytes)> make;
  // Runs in the stream's order. An exception of `work` is the stream's error on the host
  // device only.
  std::function<void(device::Stream&, std::function<void()> work,
                     std::span<const device::MemoryAccess>)>
      queue;

  friend std::ostream& operator<<(std::ostream& out, const DeviceUnderTest& device) {
    return out << device.name;
  }
};

inline DeviceUnderTest host_under_test() {
  return {
      "host", "",
      [](std::uint64_t capacity_bytes) {
        return device::make_host_device({.capacity_bytes = capacity_bytes, .detect_races = true});
      },
      [](device::Stream& stream, std::function<void()> work,
         std::span<const device::MemoryAccess> accesses) {
        stream.launch(std::move(work), accesses);
      }};
}

inline DeviceUnderTest simulated_cuda_under_test() {
  DeviceUnderTest device;
  device.name = "cuda";
  device.make = [](std::uint64_t capacity_bytes) {
    return device::make_cuda_device({.capacity_bytes = capacity_bytes});
  };
  // A real driver's memory is not the host's to touch.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  using LaunchHostFunc = int (*)(void* stream, void (*function)(void*), void* data);
  const bool is_simulated =
      library != nullptr && ::dlsym(library, "sluice_simulator_objects") != nullptr;
  const auto launch = is_simulated
                          ? reinterpret_cast<LaunchHostFunc>(::dlsym(library, "cuLaunchHostFunc"))
                          : nullptr;
  if (launch == nullptr || device::find_cuda_devices().devices.empty()) {
    device.missing = "no simulated CUDA driver: ctest finds it where nvcc was there";
    return device;
  }
  device.queue = [launch](device::Stream& stream, std::function<void()> work,
                          std::span<const device::MemoryAccess> accesses) {
    stream.launch(
        [&] {
          auto queued = std::make_unique<std::function<void()>>(std::move(work));
          const auto run = [](void* data) {
            const std::unique_ptr<std::function<void()>> mine(
                static_cast<std::function<void()>*>(data));
            (*mine)();
          };
          if (launch(stream.native(), run, queued.get()) != 0) {
            throw DeviceError("cuLaunchHostFunc failed");
          }
          static_cast<void>(queued.release());
        },
        accesses);
  };
  return device;
}

inline std::vector<DeviceUnderTest> devices_under_test() {
  return {host_under_test(), simulated_cuda_under_test()};
}

}  // namespace sluice::allocator
