// The engine on the CUDA device, with the host's own kernels queued on its streams. The result
// shows whether the engine orders its work by streams and events alone. The simulated driver runs
// everything later than it was asked for, and lets only streams touch device memory. So a step that
// reads too early, or by the host, gives other bits or dies.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "device/cuda/cuda_device.hpp"
#include "tests/support/cuda_driver/simulator.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/recorded_session.hpp"
#include "tests/support/streamed_kernels.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using testing::CudaSimulator;
using testing::Overrides;
using testing::places;
using testing::PlannedSession;
using testing::record_steps;
using testing::SessionRecord;
using testing::StreamedKernels;
using testing::TrainingBench;
using testing::operator+;

constexpr int kSteps = 4;

const Overrides kGpt2{"model.family=gpt2", "model.layers=3",      "model.hidden=64",
                      "model.heads=4",     "model.vocab=256",     "train.seq=32",
                      "train.steps=20",    "train.micro_batch=2", "train.accumulate=2",
                      "train.threads=1",   "memory.backend=host"};
const Overrides kLlama =
    kGpt2 + Overrides{"model.family=llama", "model.kv_heads=2", "model.ffn=160", "model.layers=2"};
const Overrides kDevice = places("device", "device", "device");
const Overrides kPinned = places("pinned", "pinned", "pinned");
const Overrides kStored = places("storage", "storage", "storage");

class StreamedSession : public ::testing::Test {
 protected:
  // The guard must be set before the driver is first used in this process.
  static void SetUpTestSuite() { ::setenv("SLUICE_SIMULATED_GPU_GUARD", "1", 1); }

  static Backend backend() {
    Backend backend;
    backend.name = "cuda";
    backend.device_memory_bytes = device::free_cuda_bytes(0);
    backend.make_device = [](std::uint64_t capacity_bytes) {
      return device::make_cuda_device({.capacity_bytes = capacity_bytes});
    };
    backend.device_kernels = std::make_unique<StreamedKernels>(kernels::make_host_kernels({1}));
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

// The other tests rely on this protection.
TEST_F(StreamedSession, TheHostCannotTouchDeviceMemory) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const auto device = device::make_cuda_device({.capacity_bytes = 8 * kMiB});
        const device::RawBuffer buffer = device->allocate(4096);
        *const_cast<volatile std::byte*>(buffer.data()) = std::byte{1};
      },
      "");
}

TEST_F(StreamedSession, GivesTheHostBackendsBitsWhereverMemoryIs) {
  for (const Overrides& model : {kGpt2, kLlama}) {
    const SessionRecord reference = on_host("reference", model + kDevice);
    int number = 0;
    for (const Overrides& place :
         {kDevice, kPinned, kStored, places("pinned", "pinned", "storage"),
          places("device", "storage", "pinned"), places("device", "pinned", "storage")}) {
      SCOPED_TRACE(place.back());
      EXPECT_EQ(on_gpu("gpu" + std::to_string(number++), model + place), reference);
    }
  }
}

TEST_F(StreamedSession, GivesTheHostBackendsBitsHoweverMemoryIsMoved) {
  const SessionRecord reference = on_host("reference", kGpt2 + kDevice);
  int number = 0;
  for (const Overrides& how :
       {kPinned + Overrides{"recompute.policy=unit"}, kDevice + Overrides{"recompute.policy=unit"},
        kPinned + Overrides{"memory.chunk=4MiB", "memory.prefetch=0"},
        kStored + Overrides{"memory.chunk=6MiB", "memory.prefetch=3"},
        kStored + Overrides{"train.order=unit"},
        kPinned + Overrides{"optimizer.placement=next_forward"}}) {
    SCOPED_TRACE(number);
    EXPECT_EQ(on_gpu("gpu" + std::to_string(number++), kGpt2 + how), reference);
  }
}

TEST_F(StreamedSession, MovesAsManyBytesAsTheHostBackend) {
  const schedule::LinkBytes host = on_host("host", kGpt2 + kPinned).moved;
  const schedule::LinkBytes gpu = on_gpu("gpu", kGpt2 + kPinned).moved;
  EXPECT_GT(gpu.upload, 0u);
  EXPECT_EQ(gpu, host);
}

TEST_F(StreamedSession, RepeatedRunsGiveTheSameBits) {
  const SessionRecord first = on_gpu("first", kLlama + kPinned);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(on_gpu("again" + std::to_string(i), kLlama + kPinned), first);
}

// A call of the driver that fails in the midst of a step ends the step with a typed error, and all
// memory of the device is released.
TEST_F(StreamedSession, AFailingDriverEndsAStepWithATypedErrorAndLeavesNothing) {
  constexpr int kUnknown = 999;
  CudaSimulator simulator;
  for (const char* const function :
       {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuEventRecord", "cuStreamWaitEvent",
        "cuLaunchHostFunc", "cuEventQuery", "cuStreamQuery"}) {
    for (const std::int64_t call : {0, 1, 7, 20}) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(call));
      {
        PlannedSession session(bench_.config("failing", kGpt2 + kPinned), {}, backend());
        session.step(0);
        simulator.fail(function, call, kUnknown);
        try {
          session.step(1);
        } catch (const Error&) {
        }
        simulator.heal();
      }
      const SluiceSimulatedObjects left = simulator.objects();
      EXPECT_EQ(left.contexts + left.streams + left.events + left.blocks + left.mappings +
                    left.ranges + left.buffers + left.registrations,
                0u);
    }
  }
}

}  // namespace
}  // namespace sluice::train
