// The bubbles and micro-batches in flight that the papers give in closed form (pipeline_order.hpp
// names them).
#pragma once

#include <cstdint>
#include <optional>

#include "engine/schedule/orders/order_times.hpp"

namespace sluice::schedule {

struct PipelineShape {
  OrderKind kind = OrderKind::kGPipe;
  std::int32_t ranks = 1;
  std::int32_t stages_each = 1;  // stages of each rank
  std::int32_t microbatches = 1;
};

// The bubble of the order in the unit of `times`, which are those of one stage; nothing where no
// closed form holds.
std::optional<std::int64_t> closed_bubble(const PipelineShape& shape, const PassTimes& times);
// The most micro-batches in flight on a rank, each counted once for each of its stages.
std::optional<std::int32_t> closed_in_flight(const PipelineShape& shape, std::int32_t rank);

}  // namespace sluice::schedule
