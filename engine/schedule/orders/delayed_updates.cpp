// Orders that do not drain between updates.
//
// The passes are those of 1F1B. On stage s of p, 1F1B lists p - s - 1 forward passes ahead, so the
// newest weights at the forward pass of micro-batch k have the updates of all micro-batches up to
// k - (p - s). The versions are read off the list, and so hold for any number of micro-batches in
// an update. The lists begin and end with nothing in flight, and version 0 is the state at entry.
#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "engine/schedule/orders/pipeline_order.hpp"

namespace sluice::schedule {
namespace {

bool ends_backward(const StageAction& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
}

// The number of updates that the stage has made when each forward pass begins. Precondition: a
// stage on each rank, and backward passes in the order of micro-batches.
std::vector<std::int32_t> newest_versions(const PipelineOrder& order) {
  const std::int32_t each = order.microbatches / order.updates;
  std::vector<std::int32_t> versions(order.place_count());
  for (const std::vector<StageAction>& list : order.actions) {
    std::int32_t done = 0;
    for (const StageAction& action : list) {
      if (ends_backward(action)) ++done;
      if (action.kind != ActionKind::kForward) continue;
      versions[order.place_of(action.stage, action.microbatch)] = done / each;
    }
  }
  return versions;
}

}  // namespace

PipelineOrder make_delayed_order(DelayRule rule, std::int32_t ranks, std::int32_t microbatches_each,
                                 std::int32_t updates) {
  SLUICE_CHECK(rule != DelayRule::kDoubleBuffered || updates == 1 || microbatches_each >= ranks);
  PipelineOrder order = make_1f1b_order(ranks, microbatches_each * updates);
  order.updates = updates;
  order.versions = newest_versions(order);
  if (rule == DelayRule::kStashing) return order;
  for (std::int32_t stage = 0; stage < order.stages(); ++stage) {
    for (std::int32_t k = 0; k < order.microbatches; ++k) {
      const std::int32_t first_stage = order.versions[order.place_of(0, k)];
      const std::int32_t delayed_by_one = std::max(k / microbatches_each - 1, 0);
      order.versions[order.place_of(stage, k)] =
          rule == DelayRule::kVerticalSync ? first_stage : delayed_by_one;
    }
  }
  return order;
}

// Versions enter the set when they are made, and leave it behind the last pass that reads them. The
// newest one is needed by the next update.
std::vector<std::int32_t> most_live_versions(const PipelineOrder& order) {
  const std::int32_t each = order.microbatches / order.updates;
  std::vector<std::int32_t> most(order.rank_of_stage.size(), 1);
  for (const std::vector<StageAction>& list : order.actions) {
    for (std::int32_t stage = 0; stage < order.stages(); ++stage) {
      std::multiset<std::int32_t> to_be_read;
      std::int32_t done = 0;
      for (std::int32_t k = 0; k < order.microbatches; ++k) {
        to_be_read.insert(order.version_of(stage, k));
      }
      for (const StageAction& action : list) {
        if (action.stage != stage || !ends_backward(action)) continue;
        to_be_read.erase(to_be_read.find(order.version_of(stage, action.microbatch)));
        if (++done % each != 0) continue;
        // The update after this pass reads the version before it and makes this one.
        const std::int32_t made = done / each;
        std::set<std::int32_t> live(to_be_read.begin(), to_be_read.upper_bound(made - 1));
        live.insert(made);
        auto& peak = most[static_cast<std::size_t>(stage)];
        peak = std::max(peak, static_cast<std::int32_t>(live.size()));
      }
    }
  }
  return most;
}

}  // namespace sluice::schedule
