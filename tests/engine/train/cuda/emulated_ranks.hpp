// Ranks on GPUs, on no hardware: sessions as threads, each with a CUDA device of its own over the
// simulated driver, whose memory the host cannot touch, and the CUDA kernels emulated.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend/cuda_kernels.hpp"
#include "tests/engine/train/cuda/gpu_session.hpp"
#include "tests/support/rank_sessions.hpp"

namespace sluice::testing {

class EmulatedRanks : public GpuSession {
 protected:
  static constexpr std::int64_t kSteps = 2;

  EmulatedRanks() : GpuSession(static_cast<int>(kSteps)) {}
  std::unique_ptr<kernels::Kernels> device_kernels() const override {
    return kernels::make_cuda_kernels({.libraries = kernels::CudaLibraries::kNone});
  }
  config::Config config_of(const Overrides& how) const {
    const Overrides model{"model.layers=1",     "model.hidden=32", "model.heads=2",
                          "model.vocab=100",    "train.seq=8",     "train.micro_batch=1",
                          "train.accumulate=4", "train.threads=1", "train.steps=20",
                          "memory.backend=cuda"};
    return bench_.config("run", model + how);
  }
  static Overrides ranks(int count, int zero) {
    return {"parallel.data=" + std::to_string(count), "parallel.zero=" + std::to_string(zero)};
  }
  RankDevices gpus() const {
    RankDevices devices;
    devices.make_backend = [this](const config::Config&) { return backend(); };
    return devices;
  }
  // how: of one rank alone.
  RanksRun expect_one_ranks_bits(const Overrides& job, const Overrides& how,
                                 const RankDevices& devices) const {
    SCOPED_TRACE(::testing::PrintToString(job) + ", " + ::testing::PrintToString(how));
    const config::Config alone = config_of(how);
    PlannedSession planned(alone, {}, backend());
    const RanksRecord expected = train_session(planned.session(), alone, kSteps);
    RanksRun run =
        train_on_ranks(config_of(how + job), planned.plan().options, kSteps, {}, -1, devices);
    for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, expected);
    EXPECT_EQ(run.sent_bytes, run.planned_bytes);
    return run;
  }
};

}  // namespace sluice::testing
