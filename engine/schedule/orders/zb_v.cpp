// Micro-batches go down the ranks through the stages of the first half, and back up through those
// of the second. With equal times of the three kinds of passes no rank ever waits:
//
//   fill     forward passes of the lower stage, until the first micro-batch comes back up; then of
//            both stages in turn; then of the upper stage, each with both its backward halves
//   steady   forward, input, weight of the lower stage, and the same of the upper one
//   drain    gradients of inputs of both stages in turn, then of the lower stage with weights, then
//            all gradients of weights that have waited
#include <algorithm>
#include <map>
#include <utility>

#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {
namespace {

class VShapedList {
 public:
  VShapedList(std::int32_t rank, std::int32_t ranks, std::int32_t microbatches)
      : rank_(rank),
        after_(ranks - rank),
        lower_(rank),
        upper_(2 * ranks - 1 - rank),
        microbatches_(microbatches) {}

  std::vector<StageAction> make() && {
    fill();
    while (done(ActionKind::kForward, upper_) < microbatches_) {
      if (done(ActionKind::kForward, lower_) < microbatches_) add(ActionKind::kForward, lower_);
      add_backward(lower_);
      add(ActionKind::kForward, upper_);
      add_backward(upper_);
    }
    drain();
    return std::move(list_);
  }

 private:
  std::int32_t& done(ActionKind kind, std::int32_t stage) { return done_[{kind, stage}]; }
  void add(ActionKind kind, std::int32_t stage) {
    list_.push_back({kind, stage, done(kind, stage)++});
  }
  void add_backward(std::int32_t stage) {
    add(ActionKind::kBackwardInput, stage);
    add(ActionKind::kBackwardWeight, stage);
  }

  void fill() {
    for (std::int32_t k = 0; k < 2 * after_ - 1; ++k) add(ActionKind::kForward, lower_);
    for (std::int32_t k = 0; k < rank_; ++k) {
      add(ActionKind::kForward, upper_);
      add(ActionKind::kForward, lower_);
    }
    for (std::int32_t k = 0; k < after_; ++k) {
      add(ActionKind::kForward, upper_);
      add_backward(upper_);
    }
  }

  void drain() {
    for (std::int32_t k = 0; k < rank_; ++k) {
      add(ActionKind::kBackwardInput, lower_);
      add(ActionKind::kBackwardInput, upper_);
    }
    for (std::int32_t k = 0; k < after_; ++k) add_backward(lower_);
    for (const std::int32_t stage : {upper_, lower_}) {
      while (done(ActionKind::kBackwardWeight, stage) < microbatches_) {
        add(ActionKind::kBackwardWeight, stage);
      }
    }
  }

  std::int32_t rank_;
  std::int32_t after_;  // this rank and those after it
  std::int32_t lower_;
  std::int32_t upper_;
  std::int32_t microbatches_;
  std::map<std::pair<ActionKind, std::int32_t>, std::int32_t> done_;
  std::vector<StageAction> list_;
};

}  // namespace

PipelineOrder make_zb_v_order(std::int32_t ranks, std::int32_t microbatches) {
  PipelineOrder order = begin_order(ranks, 2, microbatches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    order.rank_of_stage[static_cast<std::size_t>(2 * ranks - 1 - rank)] = rank;
    std::vector<StageAction>& list = order.actions[static_cast<std::size_t>(rank)];
    list = VShapedList(rank, ranks, std::max(microbatches, 2 * ranks - 1)).make();
    leave_out_beyond(microbatches, list);
  }
  return order;
}

}  // namespace sluice::schedule
