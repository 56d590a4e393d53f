// Each gap of a rank's compute lane is walked backwards: from the instruction that the next one waited
// for last to the one that this waited for, until the gap begins. Each of these takes its time by its
// lane; a receive, and a collective between stages, also the time in which it waits for other stages.
// The time after the last instruction on the compute lane is walked from the one that ends last, and
// the time after that one goes to the other stages.
#include "engine/planner/price/step_shares.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "engine/schedule/orders/order_times.hpp"

namespace sluice::planner {
namespace {

using schedule::Instruction;
using schedule::InstructionId;
using schedule::InstructionTimes;
using schedule::kNoId;
using schedule::Lane;
using schedule::Op;

constexpr double kNsOfSecond = 1e9;

bool is_pass(Op op) {
  return op <= Op::kLoss;
}

// By stage: the seconds of all its passes in a step, with waits for sums between their segments.
struct StageSeconds {
  double forward_s = 0, backward_input_s = 0, backward_weight_s = 0;
  void add(Op op, double seconds) {
    const bool forward = op == Op::kForward || op == Op::kLoss;
    (forward                     ? forward_s
     : op == Op::kBackwardWeight ? backward_weight_s
                                 : backward_input_s) += seconds;
  }
  double all_s() const { return forward_s + backward_input_s + backward_weight_s; }
};

// One rank of the list, while its instructions are read in order.
struct RankState {
  StepShares shares;
  double stages_s = 0;         // waits for other stages, still to be divided
  double computed_s = 0;       // the end of its last instruction on the compute lane
  InstructionId last = kNoId;  // to retire
  std::array<InstructionId, schedule::kLaneCount> last_of_lane{};
  std::vector<StageSeconds> stages;
};

class Reader {
 public:
  Reader(const schedule::Schedule& world, const std::vector<InstructionTimes>& times,
         const schedule::StageView& pipeline)
      : world_(world),
        times_(times),
        has_stages_(!pipeline.is_alone()),
        before_(world.instructions.size(), kNoId),
        ranks_(static_cast<std::size_t>(world.ranks)) {
    for (std::size_t stage = 0; has_stages_ && stage < pipeline.units.size(); ++stage) {
      stage_of_.resize(static_cast<std::size_t>(pipeline.units[stage].end), stage);
    }
    for (RankState& rank : ranks_) {
      rank.last_of_lane.fill(kNoId);
      rank.stages.resize(std::max<std::size_t>(pipeline.units.size(), 1));
    }
  }

  std::vector<RankState> read() && {
    for (const Instruction& instruction : world_.instructions) {
      RankState& rank = ranks_[static_cast<std::size_t>(instruction.rank)];
      InstructionId& of_lane = rank.last_of_lane[static_cast<std::size_t>(instruction.lane)];
      before_[instruction.id] = of_lane;
      of_lane = instruction.id;
      if (rank.last == kNoId || times_[instruction.id].retired_s >= times_[rank.last].retired_s) {
        rank.last = instruction.id;
      }
      if (instruction.lane == Lane::kCompute) add_compute(instruction, rank);
    }
    double total_s = 0;
    for (const InstructionTimes& at : times_) total_s = std::max(total_s, at.retired_s);
    for (RankState& rank : ranks_) add_rest(rank, total_s);
    return std::move(ranks_);
  }

 private:
  // The time from the rank's last work on the compute lane to the end of the step.
  void add_rest(RankState& rank, double total_s) const {
    const double end_s = rank.last == kNoId ? 0 : times_[rank.last].retired_s;
    if (end_s > rank.computed_s) add_wait(rank, rank.computed_s, end_s, rank.last);
    const double rest_s = total_s - std::max(end_s, rank.computed_s);
    (has_stages_ ? rank.stages_s : rank.shares.data_s) += std::max(rest_s, 0.0);
  }

  void add_compute(const Instruction& instruction, RankState& rank) {
    const InstructionTimes& at = times_[instruction.id];
    // Only passes belong to a stage; the unit of another instruction may be no unit of the model.
    const bool has_stage = has_stages_ && is_pass(instruction.op) && instruction.unit >= 0;
    const std::size_t stage =
        has_stage ? stage_of_.at(static_cast<std::size_t>(instruction.unit)) : 0;
    const double gap_s = at.begin_s - rank.computed_s;
    if (gap_s > 0) {
      const InstructionId cause = latest_dep(instruction);
      const double inner_s = rank.shares.inner_s;
      add_wait(rank, rank.computed_s, at.begin_s, cause);
      if (is_pass(instruction.op)) {
        rank.stages[stage].add(instruction.op, rank.shares.inner_s - inner_s);
      }
    }
    const double work_s = at.end_s - std::max(at.begin_s, rank.computed_s);
    if (work_s > 0) {
      (is_pass(instruction.op) ? rank.shares.passes_s : rank.shares.updates_s) += work_s;
      if (is_pass(instruction.op)) rank.stages[stage].add(instruction.op, work_s);
    }
    rank.computed_s = std::max(rank.computed_s, at.end_s);
  }

  InstructionId latest_dep(const Instruction& instruction) const {
    InstructionId latest = kNoId;
    for (const InstructionId dep : instruction.deps) {
      if (latest == kNoId || times_[dep].retired_s > times_[latest].retired_s) latest = dep;
    }
    return latest;
  }

  // An instruction of its own rank; kNoId: it waited for none.
  InstructionId predecessor(InstructionId id) const {
    const InstructionId dep = latest_dep(world_.instructions[id]), before = before_[id];
    if (dep == kNoId || before == kNoId) return dep == kNoId ? before : dep;
    return times_[before].retired_s > times_[dep].retired_s ? before : dep;
  }

  // cause: what the rank waits for at to_s. Each step goes to an earlier instruction of the list.
  void add_wait(RankState& rank, double from_s, double to_s, InstructionId cause) const {
    double now_s = to_s;
    while (cause != kNoId && now_s > from_s) {
      const InstructionId earlier = predecessor(cause);
      const double ready_s = earlier == kNoId ? 0 : times_[earlier].retired_s;
      const double since_s = std::clamp(ready_s, from_s, now_s);
      add_time(rank, world_.instructions[cause], since_s, now_s);
      now_s = since_s;
      cause = earlier;
    }
    rank.shares.transfers_s += now_s - from_s;
  }

  // The instruction is ready from since_s on, and the rank waits for it until now_s.
  void add_time(RankState& rank, const Instruction& instruction, double since_s,
                double now_s) const {
    StepShares& shares = rank.shares;
    const double met_s = std::clamp(times_[instruction.id].begin_s, since_s, now_s);
    switch (instruction.lane) {
      case Lane::kCompute:
        shares.updates_s += now_s - since_s;
        return;
      case Lane::kInner:
        shares.inner_s += now_s - since_s;
        return;
      case Lane::kReceive:
        rank.stages_s += now_s - since_s;
        return;
      case Lane::kSend:
        shares.messages_s += now_s - since_s;
        return;
      case Lane::kComm:
        (meets_stages(instruction) ? rank.stages_s : shares.data_s) += met_s - since_s;
        shares.data_s += now_s - met_s;
        return;
      default:
        shares.transfers_s += now_s - since_s;
    }
  }

  bool meets_stages(const Instruction& collective) const {
    if (!has_stages_ || collective.group < 0) return false;
    const auto& group = world_.groups[static_cast<std::size_t>(collective.group)];
    return group.dimension == schedule::Dimension::kPipeline;
  }

  const schedule::Schedule& world_;
  const std::vector<InstructionTimes>& times_;
  bool has_stages_;
  std::vector<InstructionId> before_;  // the instruction before it in its rank's lane
  std::vector<RankState> ranks_;
  std::vector<std::size_t> stage_of_;  // by unit
};

std::int64_t whole_ns(double seconds) {
  return std::llround(seconds * kNsOfSecond);
}

// The times of one micro-batch in each stage, on the rank that takes longest for it.
std::vector<schedule::StageTimes> stage_times(const std::vector<RankState>& ranks,
                                              const schedule::PipelineOrder& order) {
  std::vector<std::int64_t> microbatches(order.rank_of_stage.size());
  for (const auto& list : order.actions) {
    for (const schedule::StageAction& action : list) {
      if (action.kind != schedule::ActionKind::kForward) continue;
      ++microbatches[static_cast<std::size_t>(action.stage)];
    }
  }
  std::vector<schedule::StageTimes> times;
  for (std::size_t stage = 0; stage < microbatches.size(); ++stage) {
    StageSeconds most;
    for (const RankState& rank : ranks) {
      if (rank.stages[stage].all_s() > most.all_s()) most = rank.stages[stage];
    }
    const double each = 1 / static_cast<double>(std::max<std::int64_t>(microbatches[stage], 1));
    schedule::StageTimes& of = times.emplace_back();
    of.passes = {whole_ns(each * most.forward_s), whole_ns(each * most.backward_input_s),
                 whole_ns(each * most.backward_weight_s)};
  }
  return times;
}

// The order of passes on paper.
struct Paper {
  std::vector<double> works_s;    // by rank of the pipeline: of all its passes
  double span_s = 0, work_s = 0;  // the longest of all ranks
};

Paper on_paper(const schedule::PipelineOrder& order,
               const std::vector<schedule::StageTimes>& stages) {
  const schedule::OrderTimes times = schedule::time_stages(order, stages);
  Paper paper;
  for (std::size_t rank = 0; rank < times.spans.size(); ++rank) {
    double work_s = 0;
    for (const schedule::OrderTimes::Span& span : times.spans[rank]) {
      work_s += static_cast<double>(span.end - span.begin) / kNsOfSecond;
    }
    paper.works_s.push_back(work_s);
    const double idle_s = static_cast<double>(times.bubbles[rank]) / kNsOfSecond;
    paper.span_s = std::max(paper.span_s, work_s + idle_s);
    paper.work_s = std::max(paper.work_s, work_s);
  }
  return paper;
}

}  // namespace

WorldShares world_shares(const schedule::Schedule& world,
                         const std::vector<InstructionTimes>& times,
                         const schedule::StageView& pipeline,
                         const std::vector<std::int32_t>& pipeline_ranks) {
  SLUICE_CHECK(times.size() == world.instructions.size() &&
               pipeline_ranks.size() == static_cast<std::size_t>(world.ranks));
  std::vector<RankState> ranks = Reader(world, times, pipeline).read();
  WorldShares shares;
  if (!pipeline.is_alone()) {
    const Paper paper = on_paper(pipeline.order, stage_times(ranks, pipeline.order));
    shares.span_s = paper.span_s;
    shares.bubble_s = std::max(paper.span_s - paper.work_s, 0.0);
    for (std::size_t at = 0; at < ranks.size(); ++at) {
      StepShares& of = ranks[at].shares;
      const double slower_s =
          paper.work_s - paper.works_s[static_cast<std::size_t>(pipeline_ranks[at])];
      of.bubble_s = std::min(ranks[at].stages_s, shares.bubble_s);
      of.imbalance_s = std::min(ranks[at].stages_s - of.bubble_s, slower_s);
      of.messages_s += ranks[at].stages_s - of.bubble_s - of.imbalance_s;
    }
  } else {
    for (RankState& rank : ranks) rank.shares.messages_s += rank.stages_s;
  }
  for (const RankState& rank : ranks) {
    shares.ranks.push_back(rank.shares);
    shares.ends_s.push_back(rank.last == kNoId ? 0 : times[rank.last].retired_s);
  }
  return shares;
}

}  // namespace sluice::planner
