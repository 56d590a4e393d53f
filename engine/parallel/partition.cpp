// Rank r of N ends at block (r + 1) * blocks / N, rounded down, so shards differ by at most one
// block. Units that must stay whole go to the rank that holds the least so far.
#include "engine/parallel/partition.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::parallel {
namespace {

using schedule::ElemRange;

// All of the unit to the rank that holds the fewest elements; of several, to the first.
std::vector<ElemRange> give_whole(std::uint64_t elems, std::vector<std::uint64_t>& held) {
  std::vector<ElemRange> shards;
  const auto owner =
      static_cast<std::size_t>(std::min_element(held.begin(), held.end()) - held.begin());
  held[owner] += elems;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
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
  for (std::uint64_t rank = 0; rank < count; ++rank) {
    shards.push_back(
        {blocks * rank / count * kLawBlockElems, blocks * (rank + 1) / count * kLawBlockElems});
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
  std::vector<std::uint64_t> held(static_cast<std::size_t>(ranks));
  for (const schedule::UnitFootprint& unit : model.units) {
    view.shards.push_back(whole ? give_whole(unit.elems, held)
                                : partition_blocks(unit.elems, ranks));
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

}  // namespace sluice::parallel
