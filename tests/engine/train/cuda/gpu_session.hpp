// Sessions on the CUDA device over the simulated driver, and the same on the host backend.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "device/cuda/cuda_device.hpp"
#include "tests/support/cuda_driver/simulator.hpp"
#include "tests/support/recorded_session.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

class GpuSession : public ::testing::Test {
 protected:
  // steps: of each record.
  explicit GpuSession(int steps) : steps_(steps) {}
  // The guard must be set before the driver is first used in this process.
  static void SetUpTestSuite() { ::setenv("SLUICE_SIMULATED_GPU_GUARD", "1", 1); }

  virtual std::unique_ptr<kernels::Kernels> device_kernels() const = 0;

  train::Backend backend() const {
    train::Backend backend;
    backend.name = "cuda";
    backend.device_memory_bytes = device::free_cuda_bytes(0);
    backend.make_device = [](std::uint64_t capacity_bytes) {
      return device::make_cuda_device({.capacity_bytes = capacity_bytes});
    };
    backend.device_kernels = device_kernels();
    backend.host_kernels = kernels::make_host_kernels({1});
    return backend;
  }
  SessionRecord on_gpu(const std::string& name, const Overrides& overrides) const {
    PlannedSession session(bench_.config(name, overrides), {}, backend());
    return record_steps(session, steps_);
  }
  SessionRecord on_host(const std::string& name, const Overrides& overrides) const {
    PlannedSession session(bench_.config(name, overrides));
    return record_steps(session, steps_);
  }

  const Overrides device_ = places("device", "device", "device");
  const Overrides pinned_ = places("pinned", "pinned", "pinned");
  const Overrides stored_ = places("storage", "storage", "storage");
  const CudaSimulator simulator_;
  TrainingBench bench_;

 private:
  const int steps_;
};

}  // namespace sluice::testing
