// Steps of several data-parallel ranks: one list for each rank, and the schedule of their world.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/parallel/partition.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/merge.hpp"

namespace sluice::testing {

// In place of a ZeRO stage: rank 0 is a server.
inline constexpr std::int32_t kServerStage = -1;

inline schedule::StepModel model_of_rank(schedule::StepModel model, std::int32_t rank,
                                         std::int32_t ranks, std::int32_t zero_stage) {
  model.view = zero_stage == kServerStage
                   ? parallel::make_server_view(model, rank, ranks)
                   : parallel::make_rank_view(model, rank, ranks, zero_stage);
  return model;
}

inline std::vector<schedule::Schedule> lists_of_ranks(const schedule::StepModel& model,
                                                      const schedule::StepOptions& options,
                                                      schedule::StepKind kind, std::int32_t ranks,
                                                      std::int32_t zero_stage) {
  std::vector<schedule::Schedule> lists;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    lists.push_back(
        schedule::compile(model_of_rank(model, rank, ranks, zero_stage), options, kind));
  }
  return lists;
}

inline schedule::Schedule world_of(const schedule::StepModel& model,
                                   const schedule::StepOptions& options, schedule::StepKind kind,
                                   std::int32_t ranks, std::int32_t zero_stage) {
  return schedule::merge(lists_of_ranks(model, options, kind, ranks, zero_stage));
}

// Below stage 3 weights lie whole on the device, and without shards gradients do too.
inline void place_for_stage(schedule::Placement& placement, std::int32_t zero_stage) {
  if (zero_stage < 3) placement.weight.assign(placement.weight.size(), Tier::kDevice);
  if (zero_stage == 0) placement.gradient.assign(placement.gradient.size(), Tier::kDevice);
}

}  // namespace sluice::testing
