// Training with memory.backend = "cuda" from end to end, on no hardware: the CUDA device over the
// simulated driver, and the CUDA kernels emulated on the CPU.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>

#include "device/cuda/cuda_device.hpp"
#include "kernels/backend/cuda_kernels.hpp"
#include "tests/support/cuda_driver/simulator.hpp"
#include "tests/support/recorded_session.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using testing::CudaSimulator;
using testing::Overrides;
using testing::places;
using testing::PlannedSession;
using testing::record_steps;
using testing::SessionRecord;
using testing::TrainingBench;
using testing::operator+;

constexpr int kSteps = 3;

// As small as every kernel still has a border to get wrong.
const Overrides kGpt2{"model.family=gpt2",   "model.layers=2",     "model.hidden=32",
                      "model.heads=2",       "model.vocab=100",    "train.seq=12",
                      "train.micro_batch=2", "train.accumulate=2", "train.steps=20",
                      "train.threads=1",     "memory.backend=host"};
const Overrides kLlama =
    kGpt2 + Overrides{"model.family=llama", "model.kv_heads=1", "model.ffn=80", "model.layers=1"};
const Overrides kDevice = places("device", "device", "device");
const Overrides kPinned = places("pinned", "pinned", "pinned");
const Overrides kStored = places("storage", "storage", "storage");

class EmulatedTraining : public ::testing::Test {
 protected:
  // Before the driver is first used in this process.
  static void SetUpTestSuite() { ::setenv("SLUICE_SIMULATED_GPU_GUARD", "1", 1); }

  static Backend backend() {
    Backend backend;
    backend.name = "cuda";
    backend.device_memory_bytes = device::free_cuda_bytes(0);
    backend.make_device = [](std::uint64_t capacity_bytes) {
      return device::make_cuda_device({.capacity_bytes = capacity_bytes});
    };
    backend.device_kernels =
        kernels::make_cuda_kernels({.libraries = kernels::CudaLibraries::kNone});
    backend.host_kernels = kernels::make_host_kernels({1});
    return backend;
  }
  SessionRecord on_gpu(const std::string& name, const Overrides& overrides) const {
    PlannedSession session(bench_.config(name, overrides), {}, backend());
    return record_steps(session, kSteps);
  }
  SessionRecord on_host(const std::string& name, const Overrides& overrides) const {
    PlannedSession session(bench_.config(name, overrides));
    return record_steps(session, kSteps);
  }

  const CudaSimulator simulator_;
  TrainingBench bench_;
};

TEST_F(EmulatedTraining, GivesTheSameBitsWhereverMemoryIsAndHoweverItIsMoved) {
  for (const Overrides& model : {kGpt2, kLlama}) {
    const SessionRecord reference = on_gpu("reference", model + kDevice);
    int number = 0;
    for (const Overrides& how :
         {kDevice, kPinned + Overrides{"memory.chunk=4MiB", "memory.prefetch=0"},
          kStored + Overrides{"recompute.policy=unit"},
          places("device", "storage", "pinned") + Overrides{"train.order=unit"}}) {
      SCOPED_TRACE(number);
      EXPECT_EQ(on_gpu("other" + std::to_string(number++), model + how), reference);
    }
  }
}

TEST_F(EmulatedTraining, LearnsAsTheHostBackendDoes) {
  for (const Overrides& model : {kGpt2, kLlama}) {
    for (const char* const precision : {"train.precision=bf16", "train.precision=fp32"}) {
      SCOPED_TRACE(precision);
      const Overrides run = model + kDevice + Overrides{precision};
      const SessionRecord gpu = on_gpu("gpu", run);
      const SessionRecord host = on_host("host", run);
      const double tolerance = std::string(precision).ends_with("fp32") ? 1e-4 : 2e-2;
      EXPECT_LT(gpu.losses.back(), gpu.losses.front() - 0.05);
      for (std::size_t i = 0; i < host.losses.size(); ++i) {
        EXPECT_NEAR(gpu.losses[i], host.losses[i], tolerance) << i;
      }
    }
  }
}

// One sum of gradients over micro-batches, in any place.
TEST_F(EmulatedTraining, AccumulatesAlikeOnBothSides) {
  const Overrides four{"train.accumulate=4"};
  EXPECT_EQ(on_gpu("pinned", kGpt2 + kPinned + four), on_gpu("device", kGpt2 + kDevice + four));
}

}  // namespace
}  // namespace sluice::train
