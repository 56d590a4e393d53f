// Training runs of pipelines compared with the run of one rank: the same losses, norms and weights,
// to the bit. Ranks are threads; the bytes that they exchange are real.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/support/pipeline_world.hpp"
#include "tests/support/rank_sessions.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

inline constexpr std::int64_t kPipelineSteps = 3;
inline constexpr std::int64_t kPipelineLayers = 6;

struct PipelineCase {
  int pipeline = 2;
  int data = 1;
  int zero = 0;
  int virtual_stages = 1;
  int microbatches = 2;  // of each pipeline
  int fold_groups = 1;
  Tier partial = Tier::kDevice;  // of the groups' sums
  std::string order = "1f1b";
  std::uint64_t cut_seed = 1;
  Overrides settings;
};

inline Overrides pipeline_model() {
  return kChosenByHand + Overrides{"model.layers=" + std::to_string(kPipelineLayers),
                                   "model.hidden=64",
                                   "model.heads=4",
                                   "train.seq=16",
                                   "train.micro_batch=2",
                                   "train.steps=3",
                                   "model.vocab=256"};
}

inline config::Config config_of_case(const TrainingBench& bench, const PipelineCase& at,
                                     bool alone) {
  Overrides settings =
      pipeline_model() + at.settings +
      Overrides{"train.accumulate=" + std::to_string(at.microbatches * at.data),
                "train.fold_groups=" + std::to_string(at.fold_groups), "train.order=microbatch"};
  if (alone) return bench.config("run", settings);
  settings = settings + Overrides{"parallel.data=" + std::to_string(at.data),
                                  "parallel.zero=" + std::to_string(at.zero),
                                  "parallel.pipeline=" + std::to_string(at.pipeline),
                                  "parallel.schedule=" + at.order};
  // A file says the stages of each rank itself.
  if (!at.order.starts_with("csv:")) {
    settings.push_back("parallel.virtual_stages=" + std::to_string(at.virtual_stages));
  }
  return bench.config("run", settings);
}

inline void expect_one_ranks_bits(const PipelineCase& at) {
  SCOPED_TRACE(at.order + ", " + std::to_string(at.pipeline) + " x " +
               std::to_string(at.virtual_stages) + " stages, " + std::to_string(at.data) +
               " data ranks, ZeRO " + std::to_string(at.zero) + ", " +
               std::to_string(at.microbatches) + " micro-batches, groups " +
               std::to_string(at.fold_groups) + ", " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  const config::Config alone = config_of_case(bench, at, true);
  PlannedSession planned(alone);
  const RanksRecord expected = train_session(planned.session(), alone, kPipelineSteps);
  schedule::StepOptions options = planned.plan().options;
  options.stages = drawn_stages(kPipelineLayers + 2, at.pipeline * at.virtual_stages, at.cut_seed);
  cut_segments(options.recompute, options.stages);
  options.recompute_ahead = static_cast<std::int32_t>(at.cut_seed % 3);
  options.placement.partial.assign(kPipelineLayers + 2, at.partial);
  const RanksRun run = train_on_ranks(config_of_case(bench, at, false), options, kPipelineSteps);
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, expected);
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
}

}  // namespace sluice::testing
