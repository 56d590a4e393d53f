// A bound for each cut into stages that a plan may have (stage_cuts); the least of them holds for all.
//
// Every rank computes its passes in the order of the schedule, and each waits for the messages that it
// reads. So the times of the order, with passes that are never late for anything else, bound the step.
//
// Data-parallel ranks exchange the gradients of a stage after its last backward passes, and
// gather weights, or rounded gradients, after these or in front of the first forward pass. Nothing
// can hide this from the stage: its passes between the first micro-batch's forward pass and the
// last one's backward pass come on top. Bytes and links are those of data-parallel rank 0 on each
// pipeline rank.
#include "engine/planner/bound/pipeline_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/planner/bound/pipeline_choice.hpp"
#include "engine/planner/bound/step_work.hpp"
#include "engine/planner/choice/rank_settings.hpp"
#include "engine/schedule/compile/rank_share.hpp"
#include "engine/schedule/orders/order_times.hpp"

namespace sluice::planner {
namespace {

using schedule::ActionKind;

constexpr double kSecondsOfNs = 1e-9;
// The simulator ends an instruction up to 1e-9 of its time early.
constexpr double kRounding = 1 - 1e-8;

std::int64_t whole_ns(double seconds) {
  return static_cast<std::int64_t>(std::floor(seconds / kSecondsOfNs));
}

class CutBound {
 public:
  CutBound(const config::Config& config, const schedule::StepModel& model, CostModel& costs,
           const schedule::PipelineOrder& order, const StageCut& cut)
      : config_(config), model_(model), costs_(costs), order_(order), cut_(cut) {}

  double seconds() const {
    const schedule::OrderTimes times = schedule::time_stages(order_, stage_times());
    double bound_s = kSecondsOfNs * static_cast<double>(times.makespan);
    for (std::size_t rank = 0; rank < order_.actions.size(); ++rank) {
      bound_s = std::max(bound_s, with_exchanges_s(rank, times.spans[rank]));
    }
    return kRounding * bound_s;
  }

 private:
  std::vector<schedule::StageTimes> stage_times() const {
    const auto world = static_cast<std::int32_t>(config_.parallel.ranks());
    const auto of_stage = static_cast<std::int32_t>(world / config_.parallel.pipeline);
    std::vector<schedule::StageTimes> list;
    for (const schedule::UnitRange& stage : cut_) {
      CostModel::UnitPasses sum;
      for (std::int32_t unit = stage.begin; unit < stage.end; ++unit) {
        const CostModel::UnitPasses passes = costs_.unit_passes(unit);
        sum.forward_s += passes.forward_s;
        sum.backward_input_s += passes.backward_input_s;
        sum.backward_weight_s += passes.backward_weight_s;
      }
      schedule::StageTimes& times = list.emplace_back();
      times.passes = {whole_ns(sum.forward_s), whole_ns(sum.backward_input_s),
                      whole_ns(sum.backward_weight_s)};
      // The first unit's gradients of weights may come after the message.
      times.lead = 1 + whole_ns(costs_.unit_passes(stage.begin).backward_weight_s);
      const auto bytes =
          static_cast<double>(model_.units[static_cast<std::size_t>(stage.end - 1)].output_bytes);
      times.message = whole_ns(costs_.links().message_s(world, of_stage, bytes));
    }
    return list;
  }

  // The rank's passes after the first micro-batch's forward passes and in front of the last one's
  // backward passes: from the end of the last one of those to the begin of the first one of these.
  struct Middle {
    std::size_t begin = 0, end = 0;  // by number in the rank's list; `end` is that backward pass
  };
  Middle middle_of(const std::vector<schedule::StageAction>& actions) const {
    Middle middle{0, actions.size()};
    for (std::size_t at = 0; at < actions.size(); ++at) {
      const bool makes_gradient = actions[at].kind == ActionKind::kBackward ||
                                  actions[at].kind == ActionKind::kBackwardWeight;
      if (actions[at].kind == ActionKind::kForward && actions[at].microbatch == 0) {
        middle.begin = at + 1;
      }
      if (makes_gradient && actions[at].microbatch + 1 == order_.microbatches) {
        middle.end = std::min(middle.end, at);
      }
    }
    return middle;
  }

  // Exchanges go through one lane of the rank.
  double with_exchanges_s(std::size_t rank,
                          const std::vector<schedule::OrderTimes::Span>& spans) const {
    StepWork<double> all;
    for (std::size_t stage = 0; stage < cut_.size(); ++stage) {
      if (order_.rank_of_stage[stage] != static_cast<std::int32_t>(rank)) continue;
      for (std::int32_t unit = cut_[stage].begin; unit < cut_[stage].end; ++unit) {
        add_exchanges(all, static_cast<std::int32_t>(rank), unit);
      }
    }
    const double sums_s = all[kBackwardPhase].comm;
    const Middle middle = middle_of(order_.actions[rank]);
    if (middle.end == spans.size()) return 0;
    std::int64_t between = 0;
    for (std::size_t at = middle.begin; at < middle.end; ++at) {
      between += spans[at].end - spans[at].begin;
    }
    return std::max(kSecondsOfNs * static_cast<double>(spans[middle.end].begin) + sums_s,
                    kSecondsOfNs * static_cast<double>(between) + sums_s + all[kUpdatePhase].comm);
  }

  // The exchanges of data-parallel ranks that the unit cannot do without: the last gradients' sums,
  // and gathers of weights or of rounded gradients. Data-parallel rank 0 on the pipeline rank receives
  // the parts of its shard, and the shards of the others.
  void add_exchanges(StepWork<double>& work, std::int32_t pipeline_rank, std::int32_t unit) const {
    const schedule::RankView& view = model_.view;
    if (view.is_alone() || view.has_server || sums_by_place(config_)) return;
    RankLinks::Messages parts, shards;
    const auto own = static_cast<double>(schedule::shard_of(model_, unit, 0).elems());
    const std::int32_t self = schedule::world_rank(view, pipeline_rank, 0);
    const auto width = static_cast<double>(dtype_bytes(model_.dtype));
    // With groups a rank sends one sum, in fp32 unless it is of a single micro-batch.
    const bool is_sum = config_.train.fold_groups > 1 && order_.microbatches > 1;
    const double part_width = is_sum ? sizeof(float) : width;
    for (std::int32_t peer = 1; peer < view.ranks; ++peer) {
      const bool near =
          costs_.links().share_node(self, schedule::world_rank(view, pipeline_rank, peer));
      const auto theirs = static_cast<double>(schedule::shard_of(model_, unit, peer).elems());
      (near ? parts.node_bytes : parts.network_bytes) += part_width * own;
      (near ? shards.node_bytes : shards.network_bytes) += width * theirs;
    }
    const auto at_once = static_cast<std::int32_t>(view.ranks * config_.parallel.inner_ranks());
    work[kBackwardPhase].comm += costs_.links().messages_s(at_once, parts);
    work[kUpdatePhase].comm += costs_.links().messages_s(at_once, shards);
  }

  const config::Config& config_;
  const schedule::StepModel& model_;
  CostModel& costs_;
  const schedule::PipelineOrder& order_;
  const StageCut& cut_;
};

// The mean over ranks of the passes of one update.
double even_share_s(const config::Config& config, const schedule::StepModel& model,
                    CostModel& costs) {
  double all_s = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    all_s += costs.unit_s(static_cast<std::int32_t>(unit));
  }
  return static_cast<double>(config.train.accumulate) /
         static_cast<double>(config.parallel.data * config.parallel.pipeline) * all_s;
}

}  // namespace

double least_pipeline_s(const config::Config& config, const schedule::StepModel& model,
                        CostModel& costs) {
  if (config.parallel.pipeline == 1 || config.parallel.delays_updates()) {
    return even_share_s(config, model, costs);
  }
  const schedule::PipelineOrder order = choose_order(config);
  double least_s = std::numeric_limits<double>::infinity();
  for (const StageCut& cut : stage_cuts(config, model, order, costs)) {
    least_s = std::min(least_s, CutBound(config, model, costs, order, cut).seconds());
  }
  return least_s;
}

}  // namespace sluice::planner
