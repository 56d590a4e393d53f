// Brings the units' gradients to their homes, summed in micro-batch order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/schedule/compile/group_sums.hpp"
#include "engine/schedule/compile/partial_sums.hpp"
#include "engine/schedule/compile/rank_exchange.hpp"
#include "engine/schedule/compile/ring_sum.hpp"
#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

class GradientPath {
 public:
  explicit GradientPath(StepBuilder& builder) : builder_(builder), partials_(builder) {}
  // Call after BackwardWeight(unit, microbatch), with the rank's micro-batches of a unit in
  // ascending order. window: the device window that it wrote, or the device home itself.
  void emit(std::int32_t unit, std::int32_t microbatch, BufferId window);
  // Emits `next` once the gradients so far are where their path ends.
  void then(const std::function<void()>& next);
  // Ends all paths, adds the tied use's gradient into its tensor's, and takes that unit's norm. The
  // head's rank sends the former, if the tensor is of another rank. Call after the last emit().
  void finish();

 private:
  void after_exchange(std::function<void()> rest);
  void continue_path(std::function<void()> rest);
  void end_paths(std::size_t left);
  void add_round(std::int32_t unit, std::int32_t first, const std::vector<GradientPart>& parts);
  void fold_tied();
  void emit_groups(std::int32_t unit, std::int32_t microbatch, BufferId window);
  void add_to_group(std::int32_t unit, std::int32_t microbatch, BufferId window);
  void fold_ranks(std::int32_t unit, BufferId partial);
  void finish_ranks(std::int32_t unit, BufferId sum);
  void pass_on(std::int32_t unit, const std::shared_ptr<RingSum>& ring);
  void sum_on_device(std::int32_t unit, const std::vector<GradientPart>& parts);
  void finish_rounded(std::int32_t unit);
  void send_tied();
  BufferId tied_sum_on_device(ElemRange shared);

  StepBuilder& builder_;
  // The rest of each path whose exchange has begun, oldest first (StepOptions::exchange_lag).
  std::deque<std::vector<std::function<void()>>> exchanging_;
  bool continues_ = false;  // the path that ends just now has begun another exchange
  // By unit: pieces of its sum that wait in pinned memory for its next micro-batch. In the order
  // "unit" that micro-batch is the next item, so a home on storage is written once.
  std::map<std::int32_t, std::vector<BufferId>> waiting_;
  std::map<std::int32_t, BufferId> sums_;     // by unit: of gradients whose home holds them rounded
  std::map<std::int32_t, GroupSums> groups_;  // by unit: of this rank
  PartialSums partials_;                      // the same, on lower tiers
};
// The window that BackwardWeight(unit, microbatch) writes.
BufferId gradient_target(StepBuilder& builder, std::int32_t unit, std::int32_t microbatch);

}  // namespace sluice::schedule
