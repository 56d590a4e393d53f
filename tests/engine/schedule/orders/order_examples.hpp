// All orders of small and middling sizes, and a machine that runs an order in the plainest way.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/schedule/orders/closed_forms.hpp"

namespace sluice::testing {

inline std::vector<schedule::OrderKind> all_order_kinds() {
  std::vector<schedule::OrderKind> kinds;
  for (std::size_t kind = 0; kind < schedule::kOrderKindCount; ++kind) {
    kinds.push_back(static_cast<schedule::OrderKind>(kind));
  }
  return kinds;
}

inline std::vector<std::int32_t> stage_counts_of(schedule::OrderKind kind) {
  if (schedule::takes_several_stages(kind)) return {1, 2, 4};
  return {kind == schedule::OrderKind::kZbV ? 2 : 1};
}

inline schedule::PipelineOrder order_of(const schedule::PipelineShape& shape) {
  return schedule::make_order(shape.kind, shape.ranks, shape.stages_each, shape.microbatches);
}

inline std::string name_of(const schedule::PipelineShape& shape) {
  return std::string(schedule::order_name(shape.kind)) + ", " + std::to_string(shape.ranks) +
         " ranks, " + std::to_string(shape.stages_each) + " stages each, " +
         std::to_string(shape.microbatches) + " micro-batches";
}

// Runs lists that have their messages among the passes. Each rank does one thing at a time, and a
// send waits until its receiver has come to the receive. Returns whether all lists end, and each
// value is there when it is read.
inline bool runs_one_by_one(const schedule::PipelineOrder& listed) {
  using schedule::ActionKind;
  using Value = std::tuple<std::int32_t, bool, std::int32_t, std::int32_t>;  // rank, forward, ...
  std::set<Value> values;
  std::vector<std::size_t> at(listed.actions.size());
  const auto has = [&](std::int32_t rank, bool forward, std::int32_t stage, std::int32_t mb) {
    return values.contains({rank, forward, stage, mb});
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::int32_t rank = 0; rank < listed.ranks(); ++rank) {
      const auto& list = listed.actions[static_cast<std::size_t>(rank)];
      std::size_t& next = at[static_cast<std::size_t>(rank)];
      if (next == list.size()) continue;
      const auto [kind, stage, mb, with_next] = list[next];
      const bool last = stage + 1 == listed.stages();
      switch (kind) {
        case ActionKind::kForward:
          if (stage > 0 && !has(rank, true, stage - 1, mb)) return false;
          values.insert({rank, true, stage, mb});
          break;
        case ActionKind::kBackward:
        case ActionKind::kBackwardInput:
          if (!has(rank, true, stage, mb)) return false;
          if (!last && !has(rank, false, stage + 1, mb)) return false;
          values.insert({rank, false, stage, mb});
          break;
        case ActionKind::kBackwardWeight:
          if (!has(rank, false, stage, mb)) return false;
          break;
        case ActionKind::kSendForward:
        case ActionKind::kSendBackward: {
          const bool forward = kind == ActionKind::kSendForward;
          const std::int32_t to = forward ? stage + 1 : stage - 1;
          if (to < 0 || to >= listed.stages()) return false;
          const std::int32_t peer = listed.rank_of(to);
          const auto& other = listed.actions[static_cast<std::size_t>(peer)];
          std::size_t& theirs = at[static_cast<std::size_t>(peer)];
          const schedule::StageAction wanted{
              forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, to, mb};
          if (theirs == other.size() || other[theirs] != wanted) continue;
          if (!has(rank, forward, stage, mb)) return false;
          values.insert({peer, forward, stage, mb});
          ++theirs;
          break;
        }
        default:
          continue;  // a receive moves with its send
      }
      ++next;
      moved = true;
    }
  }
  for (std::size_t rank = 0; rank < at.size(); ++rank) {
    if (at[rank] != listed.actions[rank].size()) return false;
  }
  return true;
}

}  // namespace sluice::testing
