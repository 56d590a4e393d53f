// The part of a step that one rank of a pipeline does: plain data.
//
// The model is cut into stages, and an order of passes says which rank has which stages and when it
// passes through them (orders/pipeline_order.hpp). A rank keeps the state of its own units alone.
// With several data-parallel ranks as well, the order's micro-batches are those of one
// data-parallel rank, by number in its list, and every pipeline rank is a group of data-parallel
// ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/schedule/orders/message_order.hpp"
#include "engine/schedule/orders/pipeline_order.hpp"
#include "engine/schedule/rank_view.hpp"

namespace sluice::schedule {

// Units [begin, end) of the model.
struct UnitRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool operator==(const UnitRange&) const = default;
};

struct StageView {
  std::int32_t rank = 0;         // of the pipeline
  PipelineOrder order;           // empty: the rank has the whole model
  std::vector<UnitRange> units;  // by stage: not empty, ascending, covering the model
  // place_messages() of the order, which all ranks share; null: not placed yet.
  std::shared_ptr<const std::vector<std::vector<PlacedMessage>>> messages;

  bool is_alone() const { return order.ranks() <= 1; }
  std::int32_t ranks() const { return std::max(order.ranks(), 1); }
  const UnitRange& units_of(std::int32_t stage) const {
    return units[static_cast<std::size_t>(stage)];
  }
  std::int32_t stage_of(std::int32_t unit) const {
    const auto stage = std::find_if(units.begin(), units.end(),
                                    [&](const UnitRange& range) { return unit < range.end; });
    return static_cast<std::int32_t>(stage - units.begin());
  }
  std::int32_t rank_of(std::int32_t unit) const {
    return is_alone() ? 0 : order.rank_of(stage_of(unit));
  }
  bool owns(std::int32_t unit) const { return rank_of(unit) == rank; }
};

// Numbers in the world: the ranks of a tensor group follow each other, and so do the data-parallel
// groups of a pipeline rank. The result is of the view's own place in its tensor group.
constexpr std::int32_t world_rank(const RankView& view, std::int32_t pipeline_rank,
                                  std::int32_t data_rank) {
  return (pipeline_rank * view.ranks + data_rank) * view.tensor.ranks + view.tensor.rank;
}

}  // namespace sluice::schedule
