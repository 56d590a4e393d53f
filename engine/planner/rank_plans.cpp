#include "engine/planner/rank_plans.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "engine/parallel/partition.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/merge.hpp"

namespace sluice::planner {

using schedule::StepKind;

std::int32_t ranks_of(const schedule::StepModel& model) {
  return model.view.ranks * model.pipeline.ranks() * model.view.tensor.ranks;
}

schedule::StepModel step_of_rank(schedule::StepModel step, std::int32_t rank) {
  step.view.tensor.rank = rank % step.view.tensor.ranks;
  const std::int32_t group = rank / step.view.tensor.ranks;
  step.view.rank = group % step.view.ranks;
  step.pipeline.rank = group / step.view.ranks;
  return step;
}

// The ranks of a tensor group need the same memory, so that one of them stands for all.
std::vector<schedule::StepModel> other_ranks(const schedule::StepModel& step) {
  std::vector<schedule::StepModel> others;
  for (std::int32_t stage_rank = 0; stage_rank < step.pipeline.ranks(); ++stage_rank) {
    for (const std::int32_t data_rank : parallel::ranks_of_each_size(step.view)) {
      const std::int32_t rank = schedule::world_rank(step.view, stage_rank, data_rank);
      if (rank > 0) others.push_back(step_of_rank(step, rank));
    }
  }
  return others;
}

std::vector<schedule::StepModel> ranks_of_pipeline(const schedule::StepModel& step) {
  std::vector<schedule::StepModel> ranks;
  for (std::int32_t rank = 0; !step.pipeline.is_alone() && rank < ranks_of(step); ++rank) {
    ranks.push_back(step_of_rank(step, rank));
  }
  return ranks;
}

bool is_state_home(const schedule::Buffer& buffer) {
  return buffer.persistent && buffer.role == schedule::BufferRole::kState && !buffer.log_copy &&
         buffer.shadow_of == schedule::kNoId;
}

void check_schedule(const schedule::Schedule& schedule, const TierBytes& budgets) {
  const std::vector<std::string> problems = schedule::validate(schedule, budgets);
  if (problems.empty()) return;
  throw InternalError("internal error: the schedule breaks a rule: " + problems.front() +
                      "; nothing was changed; please report this with the configuration");
}

namespace {

std::uint64_t state_bytes(const schedule::Schedule& training) {
  std::uint64_t sum = 0;
  for (const schedule::Buffer& buffer : training.buffers) {
    if (is_state_home(buffer)) sum += buffer.bytes;
  }
  return sum;
}

// The spans and the compute of each rank's passes in a simulated step of the world.
void add_spans(schedule::Schedule& world, CostModel& costs, std::vector<RankFigures>& figures) {
  costs.apply(world);
  std::vector<schedule::InstructionTimes> times;
  schedule::simulate(world, costs.simulation_model(), nullptr, 0, &times);
  std::vector<std::optional<double>> begins_s(figures.size());
  std::vector<double> ends_s(figures.size());
  for (const schedule::Instruction& instruction : world.instructions) {
    const bool is_pass = instruction.op <= schedule::Op::kLoss;
    if (!is_pass) continue;
    const auto rank = static_cast<std::size_t>(instruction.rank);
    const schedule::InstructionTimes& at = times[instruction.id];
    begins_s[rank] = std::min(begins_s[rank].value_or(at.begin_s), at.begin_s);
    ends_s[rank] = std::max(ends_s[rank], at.end_s);
    figures[rank].compute_s += at.end_s - at.begin_s;
  }
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    figures[rank].span_s = ends_s[rank] - begins_s[rank].value_or(0);
  }
}

}  // namespace

RankFigures figures_of(const schedule::Schedule& training) {
  RankFigures figures;
  figures.rank = training.first_rank;
  figures.sent = sent_bytes(training);
  const auto messages = schedule::message_bytes(training, 0);
  figures.received_bytes = messages[static_cast<std::size_t>(schedule::Lane::kComm)].received;
  figures.received_stages_bytes =
      messages[static_cast<std::size_t>(schedule::Lane::kReceive)].received;
  figures.state_bytes = state_bytes(training);
  return figures;
}

// One kind of step at a time, since the lists of all ranks take memory.
std::vector<RankFigures> check_ranks(const schedule::StepModel& step, const Compiled& first,
                                     const TierBytes& budgets, CostModel& costs) {
  const auto ranks = static_cast<std::size_t>(ranks_of(step));
  std::vector<RankFigures> figures(ranks);
  std::vector<runtime::MemoryNeed> needs(ranks);
  for (const StepKind kind : schedule::kStepKinds) {
    if (!schedule::has_step(first.options, kind)) continue;
    std::vector<schedule::Schedule> lists{first.schedules[kind]};
    for (std::int32_t rank = 1; rank < ranks_of(step); ++rank) {
      lists.push_back(schedule::compile(step_of_rank(step, rank), first.options, kind));
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::array<const schedule::Schedule*, 1> list{&lists[rank]};
      const auto need = runtime::memory_need(list, runtime::StateStore::kWindowBytes);
      if (kind == StepKind::kTraining) {
        needs[rank] = need;
        figures[rank] = figures_of(lists[rank]);
      } else {
        needs[rank].include(need);
      }
    }
    schedule::Schedule world = schedule::merge(lists);
    check_schedule(world, budgets);
    if (kind == StepKind::kTraining && !step.pipeline.is_alone()) add_spans(world, costs, figures);
  }
  // The search may state a larger need than that of the first rank's schedules.
  needs.front() = first.need;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    needs[rank].fixed = first.need.fixed;
    figures[rank].peak_bytes = needs[rank].peak_bytes();
  }
  return figures;
}

}  // namespace sluice::planner
