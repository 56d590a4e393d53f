// Three walks: over the parts of the order, over each rank's list, and over all lists at once as
// they would run. The last one keeps a cursor for each lane of each rank and moves any that can.
#include "engine/schedule/orders/check_order.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace sluice::schedule {
namespace {

constexpr std::size_t kMostProblems = 16;
constexpr std::size_t kNowhere = SIZE_MAX;

class OrderCheck {
 public:
  explicit OrderCheck(const PipelineOrder& order) : order_(order) {}

  std::vector<std::string> run() && {
    check_parts();
    if (!problems_.empty()) return std::move(problems_);
    places_.assign(kActionKindCount, std::vector<std::size_t>(order_.place_count(), kNowhere));
    note_places();
    if (problems_.empty()) check_passes();
    if (problems_.empty() && order_.delays_updates()) check_versions();
    if (problems_.empty() && lists_messages_) check_listed_messages();
    if (problems_.empty()) run_lanes();
    return std::move(problems_);
  }

 private:
  void add(std::string problem) {
    if (problems_.size() < kMostProblems) problems_.push_back(std::move(problem));
  }

  // Few actions for many stages and micro-batches are refused before tables are made for them.
  void check_parts() {
    if (order_.microbatches <= 0) return add("the order has no micro-batches");
    std::size_t actions = 0;
    for (const std::vector<StageAction>& list : order_.actions) actions += list.size();
    if (actions < order_.place_count()) {
      add("the order lists " + std::to_string(actions) + " actions for " +
          std::to_string(order_.stages()) + " stages and " + std::to_string(order_.microbatches) +
          " micro-batches");
    }
    if (order_.stages() < order_.ranks() || order_.ranks() == 0) {
      add("the order has " + std::to_string(order_.ranks()) + " ranks and " +
          std::to_string(order_.stages()) + " stages");
    }
    for (std::int32_t stage = 0; stage < order_.stages(); ++stage) {
      if (order_.rank_of(stage) >= 0 && order_.rank_of(stage) < order_.ranks()) continue;
      add("stage " + std::to_string(stage) + " is of rank " +
          std::to_string(order_.rank_of(stage)) + ", which does not exist");
    }
  }

  // The position of each action in its rank's list.
  std::size_t& place(ActionKind kind, std::int32_t stage, std::int32_t microbatch) {
    return places_[static_cast<std::size_t>(kind)][order_.place_of(stage, microbatch)];
  }

  void note_places() {
    for (std::int32_t rank = 0; rank < order_.ranks(); ++rank) {
      const std::vector<StageAction>& list = order_.actions[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < list.size(); ++i) note_place(rank, i, list[i]);
    }
  }
  void note_place(std::int32_t rank, std::size_t at, const StageAction& action) {
    const std::string where = "rank " + std::to_string(rank) + " lists " + describe(action);
    if (action.stage < 0 || action.stage >= order_.stages()) {
      return add(where + ", a stage that does not exist");
    }
    if (order_.rank_of(action.stage) != rank) {
      return add(where + ", whose stage is of rank " +
                 std::to_string(order_.rank_of(action.stage)));
    }
    if (!has_microbatch(action.kind)) return;
    if (action.microbatch < 0 || action.microbatch >= order_.microbatches) {
      return add(where + ", a micro-batch that does not exist");
    }
    std::size_t& noted = place(action.kind, action.stage, action.microbatch);
    if (noted != kNowhere) return add(where + " twice");
    noted = at;
    if (waits_for_send(action.kind)) check_wait(where, action);
    lists_messages_ = lists_messages_ || is_message(action.kind);
  }

  // A rank waits for messages that it has begun to send.
  void check_wait(const std::string& where, const StageAction& action) {
    const ActionKind send = action.kind == ActionKind::kWaitSendForward ? ActionKind::kSendForward
                                                                        : ActionKind::kSendBackward;
    if (place(send, action.stage, action.microbatch) == kNowhere) {
      add(where + " before the message is sent");
    }
  }

  // One forward pass, and one backward pass or its halves, in this order.
  void check_passes() {
    for (std::int32_t stage = 0; stage < order_.stages(); ++stage) {
      for (std::int32_t k = 0; k < order_.microbatches; ++k) {
        const auto missing = [&](ActionKind kind) {
          if (place(kind, stage, k) != kNowhere) return false;
          add("no rank lists " + describe({kind, stage, k}));
          return true;
        };
        const bool whole = place(ActionKind::kBackward, stage, k) != kNowhere;
        if (missing(ActionKind::kForward)) continue;
        if (!whole && (missing(ActionKind::kBackwardInput) || missing(ActionKind::kBackwardWeight)))
          continue;
        const std::size_t input = place(ActionKind::kBackwardInput, stage, k);
        const std::size_t weight = place(ActionKind::kBackwardWeight, stage, k);
        const std::string of =
            " of stage " + std::to_string(stage) + " and micro-batch " + std::to_string(k);
        if (whole && (input != kNowhere || weight != kNowhere)) {
          add("the backward pass" + of + " is listed whole and in halves");
        } else if (place(ActionKind::kForward, stage, k) >
                   (whole ? place(ActionKind::kBackward, stage, k) : input)) {
          add("the backward pass" + of + " stands before its forward pass");
        } else if (!whole && input > weight) {
          add("the gradient of the weights" + of + " stands before that of the input");
        }
      }
    }
  }

  // A stage's update needs the gradients of all its micro-batches.
  void check_versions() {
    if (order_.updates < 1 || order_.microbatches % order_.updates != 0 ||
        order_.versions.size() != order_.place_count()) {
      return add(
          "the order's micro-batches are not a whole number of updates, each with a version");
    }
    const std::int32_t each = order_.microbatches / order_.updates;
    std::vector<std::int32_t> done(order_.rank_of_stage.size());
    for (const std::vector<StageAction>& list : order_.actions) {
      for (const StageAction& action : list) {
        std::int32_t& of_stage = done[static_cast<std::size_t>(action.stage)];
        const bool ends =
            action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
        if (ends) ++of_stage;
        if (action.kind != ActionKind::kForward) continue;
        const std::int32_t version = order_.version_of(action.stage, action.microbatch);
        if (version >= 0 && version <= of_stage / each) continue;
        add(describe(action) + " reads version " + std::to_string(version) +
            " of its stage's weights, which has " + std::to_string(of_stage / each) + " by then");
      }
    }
  }

  // The position of the pass that makes the gradient of the stage's input.
  std::size_t backward_place(std::int32_t stage, std::int32_t microbatch) {
    const std::size_t whole = place(ActionKind::kBackward, stage, microbatch);
    return whole != kNowhere ? whole : place(ActionKind::kBackwardInput, stage, microbatch);
  }
  bool crosses(std::int32_t stage) const {  // the border after the stage
    return stage >= 0 && stage + 1 < order_.stages() &&
           order_.rank_of(stage) != order_.rank_of(stage + 1);
  }

  void check_listed_messages() {
    for (std::int32_t stage = 0; stage < order_.stages(); ++stage) {
      for (std::int32_t k = 0; k < order_.microbatches; ++k) {
        const auto expect = [&](ActionKind kind, bool crosses_ranks, bool after, std::size_t pass) {
          const std::size_t at = place(kind, stage, k);
          const StageAction action{kind, stage, k};
          if ((at != kNowhere) != crosses_ranks) {
            add(crosses_ranks ? "no rank lists " + describe(action)
                              : describe(action) + " crosses no ranks");
          } else if (at != kNowhere && (after ? at < pass : at > pass)) {
            add(describe(action) + " stands on the wrong side of its pass");
          }
        };
        const std::size_t forward = place(ActionKind::kForward, stage, k);
        const std::size_t backward = backward_place(stage, k);
        expect(ActionKind::kSendForward, crosses(stage), true, forward);
        expect(ActionKind::kReceiveForward, crosses(stage - 1), false, forward);
        expect(ActionKind::kSendBackward, crosses(stage - 1), true, backward);
        expect(ActionKind::kReceiveBackward, crosses(stage), false, backward);
      }
    }
  }

  // The actions that the lanes of one rank still have to do.
  enum LaneOfRank : std::size_t { kPasses, kSends, kReceives };
  struct Lanes {
    std::array<std::vector<StageAction>, 3> lists;
    std::array<std::size_t, 3> at{};
    const StageAction* next(LaneOfRank lane) const {
      return at[lane] < lists[lane].size() ? &lists[lane][at[lane]] : nullptr;
    }
  };

  void run_lanes() {
    lanes_.resize(order_.actions.size());
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
      for (const StageAction& action : order_.actions[rank]) {
        if (!is_pass(action.kind) && !is_message(action.kind)) continue;
        const LaneOfRank lane = is_pass(action.kind)         ? kPasses
                                : sends_message(action.kind) ? kSends
                                                             : kReceives;
        lanes_[rank].lists[lane].push_back(action);
      }
    }
    for (std::vector<bool>* flags : {&forward_, &backward_, &input_there_, &gradient_there_}) {
      flags->assign(order_.place_count(), false);
    }
    bool moved = true;
    while (moved) {
      moved = false;
      for (Lanes& lanes : lanes_) {
        while (advance_passes(lanes)) moved = true;
        while (advance_send(lanes)) moved = true;
      }
    }
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
      for (const LaneOfRank lane : {kPasses, kSends, kReceives}) {
        const StageAction* stuck = lanes_[rank].next(lane);
        if (stuck == nullptr) continue;
        add("rank " + std::to_string(rank) + " waits for ever at " + describe(*stuck));
        break;
      }
    }
  }

  bool can_run(const StageAction& pass) const {
    const std::size_t own = order_.place_of(pass.stage, pass.microbatch);
    const bool last = pass.stage + 1 == order_.stages();
    switch (pass.kind) {
      case ActionKind::kForward:
        return pass.stage == 0 || input_there_[own];
      case ActionKind::kBackwardWeight:
        return backward_[own];
      default:
        return forward_[own] && (last || gradient_there_[own]);
    }
  }

  bool advance_passes(Lanes& lanes) {
    const StageAction* pass = lanes.next(kPasses);
    if (pass == nullptr || !can_run(*pass)) return false;
    ++lanes.at[kPasses];
    const std::size_t own = order_.place_of(pass->stage, pass->microbatch);
    if (pass->kind == ActionKind::kBackwardWeight) return true;
    const bool forward = pass->kind == ActionKind::kForward;
    (forward ? forward_ : backward_)[own] = true;
    // A value that stays on its rank, or whose message the order does not list, is there at once.
    if (forward && pass->stage + 1 < order_.stages() &&
        !(lists_messages_ && crosses(pass->stage))) {
      input_there_[order_.place_of(pass->stage + 1, pass->microbatch)] = true;
    }
    if (!forward && pass->stage > 0 && !(lists_messages_ && crosses(pass->stage - 1))) {
      gradient_there_[order_.place_of(pass->stage - 1, pass->microbatch)] = true;
    }
    return true;
  }

  // A send and its receive end together, when both are the next of their lanes.
  bool advance_send(Lanes& lanes) {
    const StageAction* send = lanes.next(kSends);
    if (send == nullptr) return false;
    const bool forward = send->kind == ActionKind::kSendForward;
    if (!(forward ? forward_ : backward_)[order_.place_of(send->stage, send->microbatch)])
      return false;
    const StageAction wanted{forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
                             forward ? send->stage + 1 : send->stage - 1, send->microbatch};
    Lanes& other = lanes_[static_cast<std::size_t>(order_.rank_of(wanted.stage))];
    const StageAction* receive = other.next(kReceives);
    if (receive == nullptr || receive->kind != wanted.kind || receive->stage != wanted.stage ||
        receive->microbatch != wanted.microbatch) {
      return false;
    }
    (forward ? input_there_ : gradient_there_)[order_.place_of(wanted.stage, wanted.microbatch)] =
        true;
    ++lanes.at[kSends];
    ++other.at[kReceives];
    return true;
  }

  const PipelineOrder& order_;
  std::vector<std::string> problems_;
  std::vector<std::vector<std::size_t>> places_;  // by kind, stage and micro-batch
  bool lists_messages_ = false;
  std::vector<Lanes> lanes_;  // by rank
  // By stage and micro-batch.
  std::vector<bool> forward_, backward_, input_there_, gradient_there_;
};

}  // namespace

std::vector<std::string> check_order(const PipelineOrder& order) {
  return OrderCheck(order).run();
}

std::string check_sum_order(const PipelineOrder& order) {
  std::vector<std::int32_t> last(order.rank_of_stage.size(), -1);
  for (const std::vector<StageAction>& list : order.actions) {
    for (const StageAction& action : list) {
      if (action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardWeight) {
        continue;
      }
      std::int32_t& before = last[static_cast<std::size_t>(action.stage)];
      if (action.microbatch < before) {
        return "stage " + std::to_string(action.stage) + " adds the gradient of micro-batch " +
               std::to_string(action.microbatch) + " after that of micro-batch " +
               std::to_string(before) + ", which no single rank does";
      }
      before = action.microbatch;
    }
  }
  return "";
}

}  // namespace sluice::schedule
