// The ranks of a world fall into classes of ranks that do the same at the same times.
//
// A world has data-parallel ranks of a pipeline. Two data-parallel ranks are alike if on each pipeline
// rank they have shards of the same sizes, share their nodes with as many ranks of each size of shards,
// and have their neighbours in the pipeline in their own node or not. To exchange two such ranks on
// all pipeline ranks at once changes neither a list nor the price of an instruction. The ranks of a
// tensor group have lists that differ in nothing but the names of ranks. So all ranks
// of a class, which is one pipeline rank and a set of alike data-parallel ranks, begin and end
// each instruction at the same times and need the same memory. A plan on paper compiles one list for
// each class and lets these meet in a small world of one rank for each class.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/planner/price/rank_links.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::planner {

struct RankClasses {
  std::int32_t pipeline_ranks = 1;
  std::int32_t tensor_ranks = 1;         // of each group, all alike
  std::vector<std::int32_t> alike_of;    // by data-parallel rank: its set of alike ones
  std::vector<std::int32_t> first_rank;  // by set: its first data-parallel rank, ascending
  std::vector<std::int32_t> sizes;       // by set: its data-parallel ranks

  std::int32_t data_ranks() const { return static_cast<std::int32_t>(alike_of.size()); }
  std::int32_t sets() const { return static_cast<std::int32_t>(first_rank.size()); }
  // Classes are numbered as the ranks of a world whose data-parallel ranks are the sets.
  std::int32_t count() const { return pipeline_ranks * sets(); }
  std::int32_t class_of(std::int32_t world_rank) const {
    const std::int32_t group = world_rank / tensor_ranks;
    return group / data_ranks() * sets() + alike_of[static_cast<std::size_t>(group % data_ranks())];
  }
  // The first rank of the world in the class, and the number of its ranks.
  std::int32_t world_rank_of(std::int32_t of_class) const {
    return (of_class / sets() * data_ranks() +
            first_rank[static_cast<std::size_t>(of_class % sets())]) *
           tensor_ranks;
  }
  // The last rank of the world in the class. Between the two may be ranks of others.
  std::int32_t last_rank_of(std::int32_t of_class) const {
    std::int32_t last = data_ranks() - 1;
    while (alike_of[static_cast<std::size_t>(last)] != of_class % sets()) --last;
    return (of_class / sets() * data_ranks() + last + 1) * tensor_ranks - 1;
  }
  std::int32_t size_of(std::int32_t of_class) const {
    return sizes[static_cast<std::size_t>(of_class % sets())] * tensor_ranks;
  }
};

// Precondition: the step has its pipeline. Throws InputError if nodes cut tensor groups. With sums
// around a ring, or nodes that sum first, no two data-parallel ranks are alike, because the exchanges
// depend on a rank's place among the others.
RankClasses classify_ranks(const schedule::StepModel& step, bool sums_by_place,
                           const RankLinks& links);

// The same ranks with one class for each pipeline rank, that of data-parallel rank 0. So trials of a
// large world compare settings in a fraction of the time; a plan has the times of all classes.
// Precondition: no server, and no sums by a rank's place, since rank 0 is unlike the others there.
RankClasses one_class_each(const RankClasses& classes);

// The list of a class in the small world: its peers and groups are classes. Only what a simulation
// needs is left: no buffers and no uses, since the instructions have their prices already.
schedule::Schedule list_of_class(schedule::Schedule priced, const RankClasses& classes);

}  // namespace sluice::planner
