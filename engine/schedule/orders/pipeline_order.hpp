// The order of a pipeline's passes: plain data.
//
// A model is cut into *stages*, consecutive runs of units. A rank has one stage or several, and the
// map from stages to ranks is part of the order. Each rank lists its actions in the order in which
// it computes them. Messages between stages follow from the passes (message_order.hpp), so an order
// need not list them; one that was imported may.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::schedule {

enum class ActionKind : std::uint8_t {
  kForward,
  kBackward,        // both halves at once; the gradient of the input leaves at its end
  kBackwardInput,   // the gradient of the stage's input
  kBackwardWeight,  // the gradient of its weights
  // Messages of an imported order. The stage is the one that sends or receives.
  kSendForward,
  kReceiveForward,
  kSendBackward,
  kReceiveBackward,
  // Collectives of an imported order; they have no micro-batch.
  kUnshard,
  kReshard,
  kReduceGrad,
  kWaitReduceGrad,
  // Waits of an imported order until a message of a micro-batch has left.
  kWaitSendForward,
  kWaitSendBackward,
};
inline constexpr std::size_t kActionKindCount = 14;

constexpr bool is_pass(ActionKind kind) {
  return kind <= ActionKind::kBackwardWeight;
}
constexpr bool is_message(ActionKind kind) {
  return kind >= ActionKind::kSendForward && kind <= ActionKind::kReceiveBackward;
}
constexpr bool sends_message(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}

constexpr bool waits_for_send(ActionKind kind) {
  return kind == ActionKind::kWaitSendForward || kind == ActionKind::kWaitSendBackward;
}
constexpr bool has_microbatch(ActionKind kind) {
  return is_pass(kind) || is_message(kind) || waits_for_send(kind);
}

struct StageAction {
  ActionKind kind = ActionKind::kForward;
  std::int32_t stage = 0;
  std::int32_t microbatch = -1;
  // The next action of the list may run at the same time (torch's OVERLAP_F_B). Our lists run one
  // after the other.
  bool with_next = false;
  auto operator<=>(const StageAction&) const = default;
};
// "3F0", "2SEND_B1", "0UNSHARD", as torch writes them.
std::string describe(const StageAction& action);

struct PipelineOrder {
  std::int32_t microbatches = 0;
  // Consecutive runs of equally many micro-batches that an update each applies. Above 1 the
  // pipeline does not drain between them (delayed_updates.cpp).
  std::int32_t updates = 1;
  // Delayed updates: by place_of(), the version of the stage's weights that the micro-batch reads
  // in all its passes, that is the number of updates before it. Empty: all read version 0.
  std::vector<std::int32_t> versions;
  std::vector<std::int32_t> rank_of_stage;        // by stage
  std::vector<std::vector<StageAction>> actions;  // by rank

  std::int32_t ranks() const { return static_cast<std::int32_t>(actions.size()); }
  std::int32_t stages() const { return static_cast<std::int32_t>(rank_of_stage.size()); }
  std::int32_t rank_of(std::int32_t stage) const {
    return rank_of_stage[static_cast<std::size_t>(stage)];
  }
  // A number of each stage's micro-batch below place_count(), for tables over all of them.
  std::size_t place_count() const {
    return rank_of_stage.size() * static_cast<std::size_t>(microbatches);
  }
  std::size_t place_of(std::int32_t stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  bool empty() const { return actions.empty(); }
  bool delays_updates() const { return !versions.empty(); }
  std::int32_t version_of(std::int32_t stage, std::int32_t microbatch) const {
    return delays_updates() ? versions[place_of(stage, microbatch)] : 0;
  }
  bool operator==(const PipelineOrder&) const = default;
};

// The orders that this room makes. All sum each stage's gradients in the order of micro-batches.
// Each takes any number of micro-batches from one on.

// Huang et al., "GPipe", NeurIPS 2019: all forward passes, then all backward passes.
PipelineOrder make_gpipe_order(std::int32_t ranks, std::int32_t microbatches);
// Narayanan et al., "Memory-efficient pipeline-parallel DNN training", ICML 2021 (PipeDream-flush):
// a rank keeps no more micro-batches in flight than there are ranks after it, and its own.
PipelineOrder make_1f1b_order(std::int32_t ranks, std::int32_t microbatches);
// Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021: each
// rank has `stages_each` stages, rank i those numbered i, i + ranks, and so on.
PipelineOrder make_interleaved_order(std::int32_t ranks, std::int32_t stages_each,
                                     std::int32_t microbatches);
// Qi et al., "Zero bubble pipeline parallelism", ICLR 2024. H1 keeps as many micro-batches in
// flight on each rank as 1F1B does on the first; H2 about twice as many.
PipelineOrder make_zb_h1_order(std::int32_t ranks, std::int32_t microbatches);
PipelineOrder make_zb_h2_order(std::int32_t ranks, std::int32_t microbatches);
// Qi et al., "Pipeline parallelism with controllable memory", NeurIPS 2024: rank i has stages i and
// 2 * ranks - 1 - i, so the loss is on the first rank.
PipelineOrder make_zb_v_order(std::int32_t ranks, std::int32_t microbatches);
// Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys 2023: all micro-batches pass through a
// stage before the rank's next stage begins, so a stage's weights are fetched twice a step.
PipelineOrder make_vertical_order(std::int32_t ranks, std::int32_t stages_each,
                                  std::int32_t microbatches);

// These orders have the passes of 1F1B, for all micro-batches of several updates without a flush
// between them. A stage updates its weights as soon as it has the gradients of an update's last
// micro-batch.
enum class DelayRule : std::uint8_t {
  // Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019. A
  // micro-batch reads the newest weights that each stage has when its forward pass begins, and
  // keeps them for its backward pass.
  kStashing,
  // PipeDream's vertical sync (SOSP 2019): all stages read the version that the first one had.
  kVerticalSync,
  // Narayanan et al., "Memory-efficient pipeline-parallel DNN training", ICML 2021 (PipeDream-2BW):
  // all micro-batches of update u read version u - 1, so each stage keeps two versions.
  kDoubleBuffered,
};
// Precondition of kDoubleBuffered: at least `ranks` micro-batches in each update, if there are
// several.
PipelineOrder make_delayed_order(DelayRule rule, std::int32_t ranks, std::int32_t microbatches_each,
                                 std::int32_t updates);
// By stage: the most versions of its weights that are needed at once, along its rank's list. A
// version is needed from its update to the last pass that reads it, and to the next update.
std::vector<std::int32_t> most_live_versions(const PipelineOrder& order);

// All orders by name.
enum class OrderKind : std::uint8_t {
  kGPipe,
  k1F1B,
  kInterleaved,
  kZbH1,
  kZbH2,
  kZbV,
  kVertical,
};
inline constexpr std::size_t kOrderKindCount = 7;
std::string_view order_name(OrderKind kind);
// Whether a rank may have any number of stages; else it has one, and in ZB-V two.
constexpr bool takes_several_stages(OrderKind kind) {
  return kind == OrderKind::kInterleaved || kind == OrderKind::kVertical;
}
PipelineOrder make_order(OrderKind kind, std::int32_t ranks, std::int32_t stages_each,
                         std::int32_t microbatches);

// The largest number of forward passes of a rank, of any of its stages, whose backward passes are
// not all done, along its list.
std::vector<std::int32_t> most_in_flight(const PipelineOrder& order);

}  // namespace sluice::schedule
