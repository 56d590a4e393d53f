// The engine on the CUDA device, with the host's own kernels queued on its streams. The result
// shows whether the engine orders its work by streams and events alone. The simulated driver runs
// everything later than it was asked for, and lets only streams touch device memory. So a step that
// reads too early, or by the host, gives other bits or dies.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.hpp"
#include "tests/engine/train/cuda/gpu_session.hpp"
#include "tests/support/streamed_kernels.hpp"

namespace sluice::train {
namespace {

using namespace testing;

const Overrides kGpt2{"model.family=gpt2", "model.layers=3",      "model.hidden=64",
                      "model.heads=4",     "model.vocab=256",     "train.seq=32",
                      "train.steps=20",    "train.micro_batch=2", "train.accumulate=2",
                      "train.threads=1",   "memory.backend=host"};
const Overrides kLlama =
    kGpt2 + Overrides{"model.family=llama", "model.kv_heads=2", "model.ffn=160", "model.layers=2"};

class StreamedSession : public GpuSession {
 protected:
  StreamedSession() : GpuSession(4) {}
  std::unique_ptr<kernels::Kernels> device_kernels() const override {
    return std::make_unique<StreamedKernels>(kernels::make_host_kernels({1}));
  }
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
    const SessionRecord reference = on_host("reference", model + device_);
    int number = 0;
    for (const Overrides& place :
         {device_, pinned_, stored_, places("pinned", "pinned", "storage"),
          places("device", "storage", "pinned"), places("device", "pinned", "storage")}) {
      SCOPED_TRACE(place.back());
      EXPECT_EQ(on_gpu("gpu" + std::to_string(number++), model + place), reference);
    }
  }
}

TEST_F(StreamedSession, GivesTheHostBackendsBitsHoweverMemoryIsMoved) {
  const SessionRecord reference = on_host("reference", kGpt2 + device_);
  int number = 0;
  for (const Overrides& how :
       {pinned_ + Overrides{"recompute.policy=unit"}, device_ + Overrides{"recompute.policy=unit"},
        pinned_ + Overrides{"memory.chunk=4MiB", "memory.prefetch=0"},
        stored_ + Overrides{"memory.chunk=6MiB", "memory.prefetch=3"},
        stored_ + Overrides{"train.order=unit"},
        pinned_ + Overrides{"optimizer.placement=next_forward"}}) {
    SCOPED_TRACE(number);
    EXPECT_EQ(on_gpu("gpu" + std::to_string(number++), kGpt2 + how), reference);
  }
}

TEST_F(StreamedSession, MovesAsManyBytesAsTheHostBackend) {
  const schedule::LinkBytes host = on_host("host", kGpt2 + pinned_).moved;
  const schedule::LinkBytes gpu = on_gpu("gpu", kGpt2 + pinned_).moved;
  EXPECT_GT(gpu.upload, 0u);
  EXPECT_EQ(gpu, host);
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
        PlannedSession session(bench_.config("failing", kGpt2 + pinned_), {}, backend());
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
