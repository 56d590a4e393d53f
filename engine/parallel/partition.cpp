// The first ranks get one block more where the blocks do not divide evenly. So the shards of a rank
// are, unit by unit, no smaller than those of any later rank, and ranks have only a few different
// sets of sizes.
//
// Rules that need whole tensors get shards that break at borders of tensors. A unit's tensors are
// divided into one run for each rank. A rank that got more of earlier units gets less of this one.
#include "engine/parallel/partition.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::parallel {
namespace {

using schedule::ElemRange;

using schedule::TensorBorder;

// Where each rank's run of tensors begins, as indices of borders, and where the last one ends.
// held_blocks: those that each rank has of earlier units. Dynamic programming over ranks and
// borders: least[b] is the least sum of the squares of the blocks that the ranks so far hold, if
// their runs end at border b. Of equally good ways the first ranks get more.
std::vector<std::size_t> divide_tensors(const std::vector<TensorBorder>& borders,
                                        const std::vector<std::uint64_t>& held_blocks) {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  const std::size_t count = borders.size();
  const std::size_t ranks = held_blocks.size();
  std::vector<std::uint64_t> least(count, kNone);
  least.front() = 0;
  std::vector<std::vector<std::size_t>> from(ranks, std::vector<std::size_t>(count));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::uint64_t> next(count, kNone);
    for (std::size_t end = 0; end < count; ++end) {
      for (std::size_t begin = 0; begin <= end; ++begin) {
        if (least[begin] == kNone) continue;
        const std::uint64_t blocks =
            held_blocks[rank] + (borders[end].elem - borders[begin].elem) / kLawBlockElems;
        const std::uint64_t squares = least[begin] + blocks * blocks;
        if (squares > next[end]) continue;
        next[end] = squares;
        from[rank][end] = begin;  // a later one leaves more to the ranks before
      }
    }
    least = std::move(next);
  }
  std::vector<std::size_t> begins{count - 1};
  for (std::size_t rank = ranks; rank-- > 0;) begins.push_back(from[rank][begins.back()]);
  std::reverse(begins.begin(), begins.end());
  return begins;
}

// A unit without borders is one tensor.
std::vector<TensorBorder> borders_of(const schedule::UnitFootprint& unit) {
  if (!unit.tensor_borders.empty()) return unit.tensor_borders;
  return {{0, 0}, {unit.elems, unit.tensor_state_elems}};
}

void add_tensor_shards(const schedule::StepModel& model, schedule::RankView& view) {
  std::vector<std::uint64_t> held_blocks(static_cast<std::size_t>(view.ranks));
  for (const schedule::UnitFootprint& unit : model.units) {
    const std::vector<TensorBorder> borders = borders_of(unit);
    const std::vector<std::size_t> begins = divide_tensors(borders, held_blocks);
    std::vector<ElemRange> shards;
    std::vector<ElemRange> sums;
    for (std::size_t rank = 0; rank < held_blocks.size(); ++rank) {
      const TensorBorder& first = borders[begins[rank]];
      const TensorBorder& last = borders[begins[rank + 1]];
      shards.push_back({first.elem, last.elem});
      sums.push_back({first.sum, last.sum});
      held_blocks[rank] += shards.back().elems() / kLawBlockElems;
    }
    view.shards.push_back(std::move(shards));
    view.sums.push_back(std::move(sums));
  }
}

// The tied tensor is the first of its unit.
void add_tied_shards(const schedule::StepModel& model, schedule::RankView& view) {
  std::vector<ElemRange> tied;
  for (const ElemRange& shard : view.shards.front()) {
    tied.push_back(
        {std::min(shard.begin, model.tied_elems), std::min(shard.end, model.tied_elems)});
  }
  view.shards.push_back(std::move(tied));
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
  if (kernels::needs_whole_tensors(model.optimizer)) {
    add_tensor_shards(model, view);
  } else {
    for (const schedule::UnitFootprint& unit : model.units) {
      view.shards.push_back(partition_blocks(unit.elems, ranks));
    }
  }
  add_tied_shards(model, view);
  return view;
}

schedule::RankView make_server_view(const schedule::StepModel& model, std::int32_t rank,
                                    std::int32_t ranks) {
  SLUICE_CHECK(rank >= 0 && rank < ranks);
  schedule::RankView view;
  view.rank = rank;
  view.ranks = ranks;
  if (view.is_alone()) return view;
  view.has_server = true;
  const auto owned_by_first = [ranks](std::uint64_t elems) {
    std::vector<ElemRange> shards(static_cast<std::size_t>(ranks), {elems, elems});
    shards.front().begin = 0;
    return shards;
  };
  const bool whole = kernels::needs_whole_tensors(model.optimizer);
  for (const schedule::UnitFootprint& unit : model.units) {
    view.shards.push_back(owned_by_first(unit.elems));
    if (whole) view.sums.push_back(owned_by_first(unit.tensor_state_elems));
  }
  add_tied_shards(model, view);
  return view;
}

std::vector<std::int32_t> ranks_of_each_size(const schedule::RankView& view) {
  std::set<std::vector<std::uint64_t>> seen;
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    std::vector<std::uint64_t> sizes;
    for (const auto* all : {&view.shards, &view.sums}) {
      for (const std::vector<ElemRange>& shards : *all) {
        sizes.push_back(shards[static_cast<std::size_t>(rank)].elems());
      }
    }
    if (seen.insert(std::move(sizes)).second) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace sluice::parallel
