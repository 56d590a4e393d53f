// Each rank goes on with its list as far as the ends of earlier passes are known. Times do not
// depend on the order in which the ranks are visited.
#include "engine/schedule/orders/order_times.hpp"

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

constexpr std::int64_t kNotYet = -1;

class Clock {
 public:
  Clock(const PipelineOrder& order, const std::vector<StageTimes>& stages)
      : order_(order),
        stages_(stages),
        forward_end_(order_.place_count(), kNotYet),
        backward_end_(order_.place_count(), kNotYet),
        at_(order.actions.size()),
        free_from_(order.actions.size()) {}

  OrderTimes run() && {
    times_.spans.resize(order_.actions.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < order_.actions.size(); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    for (std::size_t rank = 0; rank < order_.actions.size(); ++rank) close(rank);
    return std::move(times_);
  }

 private:
  static std::int64_t duration_of(ActionKind kind, const PassTimes& times) {
    switch (kind) {
      case ActionKind::kForward:
        return times.forward;
      case ActionKind::kBackward:
        return times.backward_input + times.backward_weight;
      case ActionKind::kBackwardInput:
        return times.backward_input;
      default:
        return times.backward_weight;
    }
  }

  // The end of a pass of one stage, as the next or the previous one sees it.
  std::int64_t seen_at(std::int64_t end, std::int32_t lower) const {
    if (end == kNotYet || order_.rank_of(lower) == order_.rank_of(lower + 1)) return end;
    return end + stages_[static_cast<std::size_t>(lower)].message;
  }

  // The time from which the pass has all that it reads; kNotYet if that is not known.
  std::int64_t ready_at(const StageAction& pass) const {
    const std::size_t own = order_.place_of(pass.stage, pass.microbatch);
    switch (pass.kind) {
      case ActionKind::kForward:
        return pass.stage == 0
                   ? 0
                   : seen_at(forward_end_[order_.place_of(pass.stage - 1, pass.microbatch)],
                             pass.stage - 1);
      case ActionKind::kBackwardWeight:
        return backward_end_[own];
      default: {
        if (pass.stage + 1 == order_.stages()) return forward_end_[own];
        const std::int64_t after =
            seen_at(backward_end_[order_.place_of(pass.stage + 1, pass.microbatch)], pass.stage);
        return forward_end_[own] == kNotYet || after == kNotYet
                   ? kNotYet
                   : std::max(forward_end_[own], after);
      }
    }
  }

  bool advance(std::size_t rank) {
    if (at_[rank] == order_.actions[rank].size()) return false;
    const StageAction& action = order_.actions[rank][at_[rank]];
    OrderTimes::Span span{free_from_[rank], free_from_[rank]};
    if (is_pass(action.kind)) {
      const std::int64_t ready = ready_at(action);
      if (ready == kNotYet) return false;
      span.begin = std::max(ready, free_from_[rank]);
      const StageTimes& stage = stages_[static_cast<std::size_t>(action.stage)];
      span.end = span.begin + duration_of(action.kind, stage.passes);
      const std::size_t own = order_.place_of(action.stage, action.microbatch);
      if (action.kind == ActionKind::kForward) forward_end_[own] = span.end;
      if (action.kind == ActionKind::kBackward) backward_end_[own] = span.end - stage.lead;
      if (action.kind == ActionKind::kBackwardInput) backward_end_[own] = span.end;
      free_from_[rank] = span.end;
    }
    times_.spans[rank].push_back(span);
    ++at_[rank];
    return true;
  }

  void close(std::size_t rank) {
    SLUICE_CHECK(at_[rank] == order_.actions[rank].size());
    std::int64_t first = kNotYet;
    std::int64_t work = 0;
    for (std::size_t i = 0; i < at_[rank]; ++i) {
      const OrderTimes::Span& span = times_.spans[rank][i];
      if (!is_pass(order_.actions[rank][i].kind)) continue;
      if (first == kNotYet) first = span.begin;
      work += span.end - span.begin;
    }
    times_.bubbles.push_back(first == kNotYet ? 0 : free_from_[rank] - first - work);
    times_.makespan = std::max(times_.makespan, free_from_[rank]);
  }

  const PipelineOrder& order_;
  const std::vector<StageTimes>& stages_;
  std::vector<std::int64_t> forward_end_;   // by stage and micro-batch
  std::vector<std::int64_t> backward_end_;  // of the gradient of the input
  std::vector<std::size_t> at_;             // by rank: its next action
  std::vector<std::int64_t> free_from_;     // by rank
  OrderTimes times_;
};

}  // namespace

OrderTimes time_order(const PipelineOrder& order, const PassTimes& times) {
  StageTimes each;
  each.passes = times;
  return time_stages(order, std::vector<StageTimes>(order.rank_of_stage.size(), each));
}

OrderTimes time_stages(const PipelineOrder& order, const std::vector<StageTimes>& stages) {
  return Clock(order, stages).run();
}

}  // namespace sluice::schedule
