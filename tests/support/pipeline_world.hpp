// Steps of pipelines: one list for each rank of the world, data-parallel ranks included, and their
// merge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.hpp"
#include "engine/parallel/partition.hpp"
#include "engine/parallel/stages.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/merge.hpp"

namespace sluice::testing {

// A pipeline's shape: its order, cut and data-parallel part.
struct PipelineMesh {
  schedule::PipelineOrder order;
  std::vector<schedule::UnitRange> units;  // by stage
  std::int32_t data_ranks = 1;
  std::int32_t zero_stage = 0;
};

// Uneven stages: each gets a unit, and the seed gives out the rest.
inline std::vector<schedule::UnitRange> drawn_stages(std::size_t units, std::int32_t stages,
                                                     std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/stages"));
  std::vector<std::int32_t> sizes(static_cast<std::size_t>(stages), 1);
  for (std::uint64_t i = static_cast<std::uint64_t>(stages); i < units; ++i) {
    ++sizes[random.below(i, sizes.size())];
  }
  std::vector<schedule::UnitRange> ranges;
  std::int32_t begin = 0;
  for (const std::int32_t size : sizes) {
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

// By world rank: the data-parallel ranks of a pipeline rank follow each other.
inline std::vector<schedule::Schedule> lists_of_pipeline(const schedule::StepModel& model,
                                                         const schedule::StepOptions& options,
                                                         schedule::StepKind kind,
                                                         const PipelineMesh& mesh) {
  std::vector<schedule::Schedule> lists;
  for (std::int32_t p = 0; p < mesh.order.ranks(); ++p) {
    for (std::int32_t d = 0; d < mesh.data_ranks; ++d) {
      schedule::StepModel own = model;
      own.view = parallel::make_rank_view(model, d, mesh.data_ranks, mesh.zero_stage);
      own.pipeline = parallel::make_stage_view(mesh.order, mesh.units, p);
      lists.push_back(schedule::compile(own, options, kind));
    }
  }
  return lists;
}

inline schedule::Schedule pipeline_world(const schedule::StepModel& model,
                                         const schedule::StepOptions& options,
                                         schedule::StepKind kind, const PipelineMesh& mesh) {
  return schedule::merge(lists_of_pipeline(model, options, kind, mesh));
}

// No segment of units that run again reaches beyond a stage.
inline void cut_segments(schedule::Recomputation& recompute,
                         const std::vector<schedule::UnitRange>& units) {
  const bool crosses = std::any_of(units.begin(), units.end(), [&](const auto& range) {
    return recompute.drops_output(range.end - 1);
  });
  if (!crosses) return;
  for (schedule::UnitRecompute& unit : recompute.units) {
    unit.output_run = 0;
    unit.parts_run = 1;
  }
}

}  // namespace sluice::testing
