// The price of a collective depends on the bytes that go to each kind of link, and these on the sizes of
// the shards at both ends. So a data-parallel rank is described by the sizes of its shards, and on
// each pipeline rank by the number of ranks of each size in its node. Ranks of a node have
// consecutive numbers, and so have the data-parallel ranks of a pipeline rank. A rank that shares a
// node with one of a farther stage shares it with all between them, so one flag for each two
// neighbours tells about messages and about the gather between stages.
#include "engine/planner/trial/rank_classes.hpp"

#include <algorithm>
#include <map>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

using Description = std::vector<std::int64_t>;

// Numbers equal descriptions alike, in the order of their first appearance.
class Numbering {
 public:
  std::int32_t number_of(const Description& description) {
    return numbers_.try_emplace(description, static_cast<std::int32_t>(numbers_.size()))
        .first->second;
  }
  std::int32_t count() const { return static_cast<std::int32_t>(numbers_.size()); }

 private:
  std::map<Description, std::int32_t> numbers_;
};

// The partials of the norm that begin in a range of the unit.
std::int64_t norm_partials(const schedule::UnitFootprint& unit, const schedule::ElemRange& range) {
  const auto before = [&](std::uint64_t elem) {
    return static_cast<std::int64_t>(unit.norm_blocks_before[elem / kLawBlockElems]);
  };
  return before(range.end) - before(range.begin);
}

// By data-parallel rank: a number for the sizes of all its shards and sums. Shards of one size may have
// more or fewer partials, since each small tensor begins a block of its own.
std::vector<std::int32_t> size_numbers(const schedule::StepModel& step, Numbering& sizes) {
  const schedule::RankView& view = step.view;
  std::vector<std::int32_t> numbers;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(view.ranks); ++rank) {
    Description description;
    for (std::size_t unit = 0; unit < step.units.size() && !view.is_alone(); ++unit) {
      description.push_back(norm_partials(step.units[unit], view.shards[unit][rank]));
    }
    for (const auto* all : {&view.shards, &view.sums}) {
      for (const std::vector<schedule::ElemRange>& shards : *all) {
        description.push_back(static_cast<std::int64_t>(shards[rank].elems()));
      }
    }
    numbers.push_back(sizes.number_of(description));
  }
  return numbers;
}

// before[size][rank]: the data-parallel ranks below `rank` with this size.
std::vector<std::vector<std::int32_t>> counts_before(const std::vector<std::int32_t>& numbers,
                                                     std::int32_t sizes) {
  std::vector<std::vector<std::int32_t>> before(static_cast<std::size_t>(sizes),
                                                std::vector<std::int32_t>{0});
  for (const std::int32_t number : numbers) {
    for (std::size_t size = 0; size < before.size(); ++size) {
      before[size].push_back(before[size].back() + (static_cast<std::size_t>(number) == size));
    }
  }
  return before;
}

}  // namespace

RankClasses classify_ranks(const schedule::StepModel& step, bool sums_by_place,
                           const RankLinks& links) {
  const std::int32_t data_ranks = step.view.ranks;
  RankClasses classes;
  classes.pipeline_ranks = step.pipeline.ranks();
  classes.tensor_ranks = step.view.tensor.ranks;
  const std::int32_t groups = data_ranks * classes.pipeline_ranks;
  const std::int32_t node_ranks = links.ranks_of_node(groups * classes.tensor_ranks);
  if (node_ranks % classes.tensor_ranks != 0) {
    throw InputError("parallel.tensor = " + std::to_string(classes.tensor_ranks) +
                     " must divide the " + std::to_string(node_ranks) +
                     " ranks of a node in a plan on paper");
  }
  const std::int32_t node = node_ranks / classes.tensor_ranks;  // in tensor groups
  Numbering sizes, alike;
  const std::vector<std::int32_t> numbers = size_numbers(step, sizes);
  const auto before = counts_before(numbers, sizes.count());
  for (std::int32_t rank = 0; rank < data_ranks; ++rank) {
    // The first rank adds its own gradients before those of others arrive.
    Description description{numbers[static_cast<std::size_t>(rank)],
                            sums_by_place ? rank : std::min(rank, 1)};
    for (std::int32_t stage = 0; stage < classes.pipeline_ranks; ++stage) {
      const std::int32_t first = stage * data_ranks;
      const std::int32_t node_begin = (first + rank) / node * node;
      const std::int32_t begin = std::max(node_begin, first) - first;
      const std::int32_t end = std::min(node_begin + node, first + data_ranks) - first;
      for (const std::vector<std::int32_t>& of_size : before) {
        description.push_back(of_size[static_cast<std::size_t>(end)] -
                              of_size[static_cast<std::size_t>(begin)]);
      }
      description.push_back(stage > 0 && first + rank - data_ranks >= node_begin);
    }
    const std::int32_t set = alike.number_of(description);
    classes.alike_of.push_back(set);
    if (set < classes.sets()) {
      ++classes.sizes[static_cast<std::size_t>(set)];
    } else {
      classes.first_rank.push_back(rank);
      classes.sizes.push_back(1);
    }
  }
  return classes;
}

RankClasses one_class_each(const RankClasses& classes) {
  RankClasses few = classes;
  few.alike_of.assign(classes.alike_of.size(), 0);
  few.first_rank = {0};
  few.sizes = {classes.data_ranks()};
  return few;
}

namespace {

// The groups of the small world, and by group of the large one its number there. A group stays if its
// first rank is the first one of a class; the others are like one of these.
std::vector<std::int32_t> reduce_groups(std::vector<schedule::Group>& groups,
                                        const RankClasses& classes) {
  std::vector<schedule::Group> reduced;
  std::vector<std::int32_t> numbers;
  for (const schedule::Group& group : groups) {
    const std::int32_t of_class = classes.class_of(group.ranks.front());
    const bool stays = classes.world_rank_of(of_class) == group.ranks.front();
    numbers.push_back(stays ? static_cast<std::int32_t>(reduced.size()) : -1);
    if (!stays) continue;
    schedule::Group members{{}, group.dimension};
    for (const std::int32_t rank : group.ranks) members.ranks.push_back(classes.class_of(rank));
    std::sort(members.ranks.begin(), members.ranks.end());
    members.ranks.erase(std::unique(members.ranks.begin(), members.ranks.end()),
                        members.ranks.end());
    reduced.push_back(std::move(members));
  }
  groups = std::move(reduced);
  return numbers;
}

}  // namespace

schedule::Schedule list_of_class(schedule::Schedule priced, const RankClasses& classes) {
  SLUICE_CHECK(priced.ranks == 1 && schedule::world_ranks_of(priced) == classes.pipeline_ranks *
                                                                            classes.data_ranks() *
                                                                            classes.tensor_ranks);
  schedule::Schedule list;
  list.first_rank = classes.class_of(priced.first_rank);
  SLUICE_CHECK(classes.world_rank_of(list.first_rank) == priced.first_rank);
  list.world_ranks = classes.count();
  list.groups = std::move(priced.groups);
  const std::vector<std::int32_t> numbers = reduce_groups(list.groups, classes);
  list.slot_bytes = priced.slot_bytes;
  list.shares_device = priced.shares_device;
  list.peak_bytes = priced.peak_bytes;
  list.instructions = std::move(priced.instructions);
  for (schedule::Instruction& instruction : list.instructions) {
    instruction.reads = {};
    instruction.writes = {};
    instruction.deps.shrink_to_fit();
    if (instruction.peer >= 0) instruction.peer = classes.class_of(instruction.peer);
    if (instruction.group >= 0) {
      instruction.group = numbers[static_cast<std::size_t>(instruction.group)];
      SLUICE_CHECK(instruction.group >= 0);
    }
  }
  return list;
}

}  // namespace sluice::planner
