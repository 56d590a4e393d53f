#include "engine/planner/rank_plans.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "engine/parallel/partition.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/compile/pack.hpp"
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

namespace {

// One rank of each set of shard sizes on each of these pipeline ranks, but for rank 0. The ranks of a
// tensor group need the same memory, so that one of them stands for all.
std::vector<schedule::StepModel> ranks_on(const schedule::StepModel& step,
                                          const std::vector<std::int32_t>& pipeline_ranks) {
  std::vector<schedule::StepModel> others;
  for (const std::int32_t stage_rank : pipeline_ranks) {
    for (const std::int32_t data_rank : parallel::ranks_of_each_size(step.view)) {
      const std::int32_t rank = schedule::world_rank(step.view, stage_rank, data_rank);
      if (rank > 0) others.push_back(step_of_rank(step, rank));
    }
  }
  return others;
}

// The sizes that a pipeline rank's memory depends on, by unit. The first and the last unit are like no
// other.
std::vector<std::uint64_t> sizes_on(const schedule::StepModel& step, std::int32_t stage_rank) {
  std::vector<std::uint64_t> sizes;
  for (std::size_t unit = 0; unit < step.units.size(); ++unit) {
    if (step.pipeline.rank_of(static_cast<std::int32_t>(unit)) != stage_rank) continue;
    const schedule::UnitFootprint& of = step.units[unit];
    const bool is_end = unit == 0 || unit + 1 == step.units.size();
    for (const std::uint64_t size :
         {of.elems, of.output_bytes, of.saved_bytes, of.context_bytes, std::uint64_t{is_end}}) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

}  // namespace

std::vector<schedule::StepModel> other_ranks(const schedule::StepModel& step) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(step.pipeline.ranks()));
  std::iota(all.begin(), all.end(), 0);
  return ranks_on(step, all);
}

std::vector<schedule::StepModel> likely_fullest_ranks(const schedule::StepModel& step) {
  if (step.pipeline.is_alone()) return other_ranks(step);
  const std::vector<std::int32_t> in_flight = schedule::most_in_flight(step.pipeline.order);
  std::map<std::vector<std::uint64_t>, std::int32_t> fullest;
  for (std::int32_t rank = 0; rank < step.pipeline.ranks(); ++rank) {
    const auto [found, fresh] = fullest.try_emplace(sizes_on(step, rank), rank);
    if (in_flight[static_cast<std::size_t>(rank)] >
        in_flight[static_cast<std::size_t>(found->second)]) {
      found->second = rank;
    }
  }
  std::vector<std::int32_t> ranks;
  for (const auto& [sizes, rank] : fullest) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks_on(step, ranks);
}

std::vector<schedule::StepModel> ranks_of_pipeline(const schedule::StepModel& step) {
  std::vector<schedule::StepModel> ranks;
  for (std::int32_t rank = 0; !step.pipeline.order.empty() && rank < ranks_of(step); ++rank) {
    ranks.push_back(step_of_rank(step, rank));
  }
  return ranks;
}

std::vector<schedule::StepModel> ranks_of_classes(const schedule::StepModel& step,
                                                  const RankClasses& classes) {
  std::vector<schedule::StepModel> ranks;
  for (std::int32_t of_class = 0; of_class < classes.count(); ++of_class) {
    ranks.push_back(step_of_rank(step, classes.world_rank_of(of_class)));
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
void add_spans(const schedule::Schedule& world,
               const std::vector<schedule::InstructionTimes>& times,
               std::vector<RankFigures>& figures) {
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

// Simulates the merged lists, and adds the times of their ranks. Precondition: the list has its costs,
// and the figures the numbers of their ranks.
void simulate_world(const schedule::StepModel& step, const schedule::Schedule& list,
                    const schedule::SimulationModel& machine, PlannedWorld& world) {
  std::vector<schedule::InstructionTimes> times;
  world.simulation = schedule::simulate(list, machine, nullptr, 0, &times);
  add_spans(list, times, world.figures);
  std::vector<std::int32_t> pipeline_ranks;
  for (const RankFigures& figures : world.figures) {
    pipeline_ranks.push_back(figures.rank / step.view.tensor.ranks / step.view.ranks);
  }
  const WorldShares shares = world_shares(list, times, step.pipeline, pipeline_ranks);
  world.span_s = shares.span_s;
  world.bubble_s = shares.bubble_s;
  for (std::size_t at = 0; at < world.figures.size(); ++at) {
    RankFigures& figures = world.figures[at];
    figures.shares = shares.ranks[at];
    figures.end_s = shares.ends_s[at];
  }
  world.path = critical_path(list, times);
  // The merge keeps the order of each rank's list.
  world.times.resize(world.figures.size());
  for (const schedule::Instruction& instruction : list.instructions) {
    world.times[static_cast<std::size_t>(instruction.rank)].push_back(times[instruction.id]);
  }
}

}  // namespace

RankFigures figures_of(const schedule::Schedule& training, const RankLinks& links) {
  RankFigures figures;
  figures.rank = figures.last_rank = training.first_rank;
  figures.links = link_use(training, links);
  figures.sent = sent_bytes(training);
  const auto messages = schedule::message_bytes(training, 0);
  figures.received_bytes = messages[static_cast<std::size_t>(schedule::Lane::kComm)].received;
  figures.received_stages_bytes =
      messages[static_cast<std::size_t>(schedule::Lane::kReceive)].received;
  figures.state_bytes = state_bytes(training);
  return figures;
}

// One kind of step at a time, since the lists of all ranks take memory.
PlannedWorld check_ranks(const schedule::StepModel& step, const Compiled& first,
                         const TierBytes& budgets, CostModel& costs) {
  const auto ranks = static_cast<std::size_t>(ranks_of(step));
  PlannedWorld result;
  std::vector<RankFigures>& figures = result.figures;
  figures.resize(ranks);
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
        figures[rank] = figures_of(lists[rank], costs.links());
      } else {
        needs[rank].include(need);
      }
    }
    schedule::Schedule world = schedule::merge(lists);
    check_schedule(world, budgets);
    if (kind != StepKind::kTraining || step.pipeline.is_alone()) continue;
    costs.apply(world);
    simulate_world(step, world, costs.simulation_model(), result);
  }
  // The search may state a larger need than that of the first rank's schedules.
  needs.front() = first.need;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    needs[rank].fixed = first.need.fixed;
    figures[rank].peak_bytes = needs[rank].peak_bytes();
  }
  return result;
}

// The lists of other steps are only placed, since nothing but their memory counts.
PlannedWorld simulate_classes(const schedule::StepModel& step, const RankClasses& classes,
                              const Compiled& first, CostModel& costs) {
  PlannedWorld result;
  std::vector<schedule::Schedule> lists;
  for (const schedule::StepModel& rank : ranks_of_classes(step, classes)) {
    const auto of_class = static_cast<std::int32_t>(lists.size());
    schedule::Schedule training = schedule::compile(rank, first.options, StepKind::kTraining);
    RankFigures figures = figures_of(training, costs.links());
    figures.alike = classes.size_of(of_class);
    figures.last_rank = classes.last_rank_of(of_class);
    const auto need_of = [](const schedule::Schedule& list) {
      const std::array<const schedule::Schedule*, 1> one{&list};
      return runtime::memory_need(one, runtime::StateStore::kWindowBytes);
    };
    runtime::MemoryNeed need = need_of(training);
    for (const StepKind kind : schedule::kStepKinds) {
      if (kind == StepKind::kTraining || !schedule::has_step(first.options, kind)) continue;
      schedule::Schedule other = schedule::generate(rank, first.options, kind);
      schedule::place_buffers(other);
      need.include(need_of(other));
    }
    need.fixed = first.need.fixed;
    figures.peak_bytes = need.peak_bytes();
    result.figures.push_back(figures);
    costs.apply(training);
    lists.push_back(list_of_class(std::move(training), classes));
  }
  // The search may state a larger need than that of the first rank's schedules.
  result.figures.front().peak_bytes = first.need.peak_bytes();
  simulate_world(step, schedule::merge(lists), costs.simulation_model(), result);
  return result;
}

}  // namespace sluice::planner
