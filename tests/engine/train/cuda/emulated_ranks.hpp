// Ranks on GPUs, on no hardware: sessions as threads, each with a CUDA device of its own over the
// simulated driver, whose memory the host cannot touch, and the CUDA kernels emulated.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "engine/planner/plan.hpp"
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
  // A group has the bits of the same group in other meshes and memory, and not those of one rank.
  // Losses and norms of one rank are near. how: of all three. more: of the second group.
  void expect_groups_bits(const Overrides& how, const Overrides& group,
                          const Overrides& more) const {
    SCOPED_TRACE(::testing::PrintToString(how + group) + ", " + ::testing::PrintToString(more));
    const config::Config alone = config_of(how + Overrides{"parallel.context=1"});
    PlannedSession planned(alone, {}, backend());
    const RanksRecord one = train_session(planned.session(), alone, kSteps);
    const RanksRecord first = train_group(how + group);
    EXPECT_EQ(train_group(how + group + more), first);
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      expect_near(first.losses[i], one.losses[i]);
      expect_near(first.norms[i], one.norms[i]);
    }
  }
  static void expect_near(std::uint64_t got, std::uint64_t want, double tolerance = 1e-4) {
    const double near = std::bit_cast<double>(want);
    EXPECT_NEAR(std::bit_cast<double>(got), near, tolerance * near);
  }
  // The record that all ranks have.
  RanksRecord train_group(const Overrides& how) const {
    return train_group_on(config_of(how), backend(), gpus());
  }
  RanksRecord train_group_on_host(const Overrides& how) const {
    const config::Config config = config_of(how + Overrides{"memory.backend=host"});
    return train_group_on(config, one_threaded_backend(config), {});
  }
  static RanksRecord train_group_on(const config::Config& config, const train::Backend& on,
                                    const RankDevices& devices) {
    const RanksRun run =
        train_on_ranks(config, options_of_rank_0(config, on), kSteps, {}, -1, devices);
    for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, run.ranks.front());
    EXPECT_EQ(run.sent_bytes, run.planned_bytes);
    return run.ranks.front();
  }
  static schedule::StepOptions options_of_rank_0(const config::Config& config,
                                                 const train::Backend& on) {
    const model::Model model(config::model_shape(config), config::tensor_share(config, 0));
    auto result = planner::make_plan(config, model, *on.device_kernels, {}, on.host_kernels.get());
    if (auto* refusal = std::get_if<planner::Refusal>(&result)) {
      throw InputError(refusal->sentence());
    }
    return std::get<planner::Plan>(std::move(result)).options;
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
