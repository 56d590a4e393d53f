// The first ranks get one block more where the blocks do not divide evenly. So the shards of a rank
// are, unit by unit, no smaller than those of any later rank, and ranks have only a few different
// sets of sizes. Units that must stay whole go to the rank that holds the least so far,
// and rank 0 is the one that ends with the most.
#include "engine/parallel/partition.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::parallel {
namespace {

using schedule::ElemRange;

// The owner of each unit: the rank that holds the fewest elements so far; of several, the first.
// Then the ranks are renumbered so that rank 0 holds the most.
std::vector<std::size_t> owners_of_whole_units(const schedule::StepModel& model,
                                               std::int32_t ranks) {
  std::vector<std::uint64_t> held(static_cast<std::size_t>(ranks));
  std::vector<std::size_t> owners;
  for (const schedule::UnitFootprint& unit : model.units) {
    const auto owner =
        static_cast<std::size_t>(std::min_element(held.begin(), held.end()) - held.begin());
    held[owner] += unit.elems;
    owners.push_back(owner);
  }
  const auto fullest =
      static_cast<std::size_t>(std::max_element(held.begin(), held.end()) - held.begin());
  for (std::size_t& owner : owners) {
    if (owner == 0 || owner == fullest) owner = fullest - owner;
  }
  return owners;
}

std::vector<ElemRange> shards_of_owner(std::uint64_t elems, std::size_t owner, std::int32_t ranks) {
  std::vector<ElemRange> shards;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    shards.push_back({rank > owner ? elems : 0, rank >= owner ? elems : 0});
  }
  return shards;
}

}  // namespace

std::vector<ElemRange> partition_blocks(std::uint64_t elems, std::int32_t ranks) {
  SLUICE_CHECK(elems % kLawBlockElems == 0 && ranks > 0);
  const std::uint64_t blocks = elems / kLawBlockElems;
  const auto count = static_cast<std::uint64_t>(ranks);
  std::vector<ElemRange> shards;
  const auto begin = [&](std::uint64_t rank) {
    return (blocks / count * rank + std::min(blocks % count, rank)) * kLawBlockElems;
  };
  for (std::uint64_t rank = 0; rank < count; ++rank) {
    shards.push_back({begin(rank), begin(rank + 1)});
  }
  return shards;
}

schedule::RankView make_rank_view(const schedule::StepModel& model, std::int32_t rank,
                                  std::int32_t ranks, std::int32_t zero_stage) {
  SLUICE_CHECK(rank >= 0 && rank < ranks && zero_stage >= 0 && zero_stage <= 3);
  schedule::RankView view;
  view.rank = rank;
  view.ranks = ranks;
  view.zero_stage = zero_stage;
  if (view.is_alone()) return view;
  const bool whole = kernels::needs_whole_tensors(model.optimizer);
  const std::vector<std::size_t> owners =
      whole ? owners_of_whole_units(model, ranks) : std::vector<std::size_t>{};
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const std::uint64_t elems = model.units[unit].elems;
    view.shards.push_back(whole ? shards_of_owner(elems, owners[unit], ranks)
                                : partition_blocks(elems, ranks));
  }
  // The tied tensor is the first of its unit.
  std::vector<ElemRange> tied;
  for (const ElemRange& shard : view.shards.front()) {
    tied.push_back(
        {std::min(shard.begin, model.tied_elems), std::min(shard.end, model.tied_elems)});
  }
  view.shards.push_back(std::move(tied));
  return view;
}

std::vector<std::int32_t> ranks_of_each_size(const schedule::RankView& view) {
  std::set<std::vector<std::uint64_t>> seen;
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    std::vector<std::uint64_t> sizes;
    for (const std::vector<ElemRange>& shards : view.shards) {
      sizes.push_back(shards[static_cast<std::size_t>(rank)].elems());
    }
    if (seen.insert(std::move(sizes)).second) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace sluice::parallel
