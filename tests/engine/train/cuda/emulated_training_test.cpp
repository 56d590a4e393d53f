// Training with memory.backend = "cuda" from end to end, on no hardware: the CUDA device over the
// simulated driver, and the CUDA kernels emulated on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/backend/cuda_kernels.hpp"
#include "tests/engine/train/cuda/gpu_session.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// As small as every kernel still has a border to get wrong.
const Overrides kGpt2{"model.family=gpt2",   "model.layers=2",     "model.hidden=32",
                      "model.heads=2",       "model.vocab=100",    "train.seq=12",
                      "train.micro_batch=2", "train.accumulate=2", "train.steps=20",
                      "train.threads=1",     "memory.backend=host"};
const Overrides kLlama =
    kGpt2 + Overrides{"model.family=llama", "model.kv_heads=1", "model.ffn=80", "model.layers=1"};

class EmulatedTraining : public GpuSession {
 protected:
  EmulatedTraining() : GpuSession(3) {}
  std::unique_ptr<kernels::Kernels> device_kernels() const override {
    return kernels::make_cuda_kernels({.libraries = kernels::CudaLibraries::kNone});
  }
};

TEST_F(EmulatedTraining, GivesTheSameBitsWhereverMemoryIsAndHoweverItIsMoved) {
  for (const Overrides& model : {kGpt2, kLlama}) {
    const SessionRecord reference = on_gpu("reference", model + device_);
    int number = 0;
    for (const Overrides& how :
         {device_, pinned_ + Overrides{"memory.chunk=4MiB", "memory.prefetch=0"},
          stored_ + Overrides{"recompute.policy=unit"},
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
      const Overrides run = model + device_ + Overrides{precision};
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
  EXPECT_EQ(on_gpu("pinned", kGpt2 + pinned_ + four), on_gpu("device", kGpt2 + device_ + four));
}

}  // namespace
}  // namespace sluice::train
