// A plan in four steps: list the candidates, search among them, validate the schedules of the
// winner, and sum up the bytes that they move and hold. If nothing fits, the refusal is made from
// the needs of the most frugal candidates.
#include "engine/planner/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "engine/checkpoint/huggingface_export.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/config/shapes.hpp"
#include "engine/parallel/partition.hpp"
#include "engine/parallel/stages.hpp"
#include "engine/planner/bound/pipeline_bound.hpp"
#include "engine/planner/bound/pipeline_choice.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/rank_settings.hpp"
#include "engine/planner/choice/step_size.hpp"
#include "engine/planner/choice/unit_need.hpp"
#include "engine/planner/default_budgets.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/outlook.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/planner/rank_plans.hpp"
#include "engine/planner/search/pipeline_search.hpp"
#include "engine/planner/search/search.hpp"
#include "engine/runtime/collective_runner.hpp"
#include "engine/runtime/durable_state.hpp"

namespace sluice::planner {
namespace {

using schedule::StepKind;

TierBytes budgets_of(const config::Config& config) {
  const TierBytes budgets{config.memory.device_bytes, config.memory.pinned_bytes,
                          config.memory.storage_bytes};
  // "auto" is larger than every number, so it would be taken for a machine without limits.
  for (const std::uint64_t bytes : budgets) SLUICE_CHECK(bytes != config::Config::kAutoBytes);
  return budgets;
}

// The size of a durable run's log: a file of two records (offload/state_log.hpp), each with the
// settings and all homes.
std::uint64_t log_bytes(const config::Config& config, const schedule::StepModel& model) {
  if (config.checkpoint.mode != config::Config::CheckpointMode::kDurable) return 0;
  std::vector<std::string> paths = config.memory.storage_paths;
  paths.push_back(config.checkpoint.dir);
  // Homes of shards have a line more.
  const std::size_t lines = ranks_of(model) == 1 ? 1 : 2;
  // A block has at most 14 slices of tensors, each in a shorter line than a home.
  const std::size_t boxes = config.parallel.tensor == 1 ? 0 : 14;
  return offload::StateLog::file_bytes(
      runtime::state_record_bytes(model.units.size() * (lines * kStateKindCount + boxes),
                                  config::durable_settings(config), paths));
}

// Messages of a GPU's memory pass through pinned memory, unless NCCL brings them.
runtime::FixedNeed fixed_need(const config::Config& config, const schedule::StepModel& model) {
  runtime::FixedNeed need;
  need.log_bytes = log_bytes(config, model);
  if (config.memory.backend == config::Config::Backend::kCuda) {
    const bool stages = config.parallel.transport != config::Config::Transport::kNccl;
    need.staging_bytes = runtime::CollectiveRunner::staging_bytes(
        stages ? ranks_of(model) : 1, static_cast<int>(config.parallel.inner_ranks()),
        !model.pipeline.is_alone());
  }
  return need;
}

// State in its homes only: shadow copies and log copies are counted elsewhere.
std::array<TierBytes, kStateKindCount> kind_bytes(const schedule::Schedule& training) {
  std::array<TierBytes, kStateKindCount> bytes{};
  for (const schedule::Buffer& buffer : training.buffers) {
    if (is_state_home(buffer)) {
      bytes[static_cast<std::size_t>(buffer.kind)][static_cast<std::size_t>(buffer.tier)] +=
          buffer.bytes;
    }
  }
  return bytes;
}

// Shadows on the device are windows, which take whole slots.
TierBytes shadow_bytes(const schedule::Schedule& training) {
  TierBytes bytes{};
  for (const schedule::Buffer& buffer : training.buffers) {
    if (buffer.shadow_of == schedule::kNoId) continue;
    bytes[static_cast<std::size_t>(buffer.tier)] +=
        buffer.window ? buffer.slots.size() * training.slot_bytes : schedule::place_bytes(buffer);
  }
  return bytes;
}

// Sums up the chosen candidate: bytes moved by each kind of step, bytes held by kind and tier, and
// the time of a redo, which the search did not simulate.
Plan finish_plan(Compiled compiled, const schedule::StepModel& step, const model::Model& model,
                 const HardwareProfile& hardware, const schedule::SimulationModel& machine) {
  Plan plan;
  plan.options = std::move(compiled.options);
  plan.view = step.view;
  plan.pipeline = step.pipeline;
  plan.schedules = std::move(compiled.schedules);
  const auto moved = [&](StepKind kind) { return schedule::link_bytes(plan.schedules[kind]); };
  if (plan.speculates()) {
    plan.redo_s = schedule::simulate(plan.schedules[StepKind::kRedo], machine).total_s;
  }
  plan.redo_bytes = moved(StepKind::kRedo);
  plan.shadow_bytes = shadow_bytes(plan.training());
  plan.need = compiled.need;
  plan.peak_bytes = compiled.need.peak_bytes();
  plan.step_bytes = moved(StepKind::kTraining);
  plan.activation_bytes = schedule::activation_link_bytes(plan.training());
  plan.saved_bytes = saved_bytes_by_part(step, plan.options, plan.training());
  plan.evaluation_bytes = moved(StepKind::kEvaluation);
  plan.saving_bytes = moved(StepKind::kSaving);
  plan.saving_bytes += moved(StepKind::kDrain);  // comes before it
  plan.simulation = std::move(compiled.simulation);
  plan.critical_path = critical_path(plan.training(), compiled.times);
  plan.bound_by = std::string(resource_name(plan.critical_path.longest()));
  plan.activation_peak_bytes = activation_peak_bytes(plan.training(), compiled.times);
  plan.profile = hardware.cpu_name;
  plan.parameters = model.parameter_count();
  plan.kind_bytes = kind_bytes(plan.training());
  plan.recompute = schedule::summarize(step, plan.options.recompute);
  for (std::size_t kind = 0; kind < kStateKindCount; ++kind) {
    plan.state_bytes += plan.state_bytes_of(static_cast<StateKind>(kind));
  }
  return plan;
}

// The phases of the run other than its steps, and the files that they write.
void add_verbs(Plan& plan, const config::Config& config, const model::Model& model) {
  const model::ParameterTable table = parameter_table(config, model);
  const DType weight = table.options().weight;
  const bool converts = checkpoint::huggingface_obstacle(model.shape()).empty();
  if (!plan.options.durable) {
    plan.checkpoint_file_bytes = checkpoint::ModelState::saved_bytes(model, table);
  }
  if (config.checkpoint.final) {
    plan.export_file_bytes = checkpoint::ModelState::exported_bytes(model, table) +
                             (converts ? checkpoint::huggingface_bytes(model.shape(), weight) : 0);
  }
  plan.verb_peaks = verb_peaks(plan.schedules, plan.options, plan.need,
                               converts && config.checkpoint.final, plan.view, plan.pipeline);
}

}  // namespace

// The sum over all tiers.
std::uint64_t Plan::state_bytes_of(StateKind kind) const {
  const TierBytes& by_tier = kind_bytes[static_cast<std::size_t>(kind)];
  return std::accumulate(by_tier.begin(), by_tier.end(), std::uint64_t{0});
}

void check_schedules(const schedule::StepSchedules& schedules, const schedule::StepOptions& options,
                     const TierBytes& budgets) {
  for (const schedule::Schedule* schedule : schedules.of(options)) {
    check_schedule(*schedule, budgets);
  }
}

namespace {

// The step of the first rank, before its pipeline is cut into stages.
schedule::StepModel step_model_of(const config::Config& config, const model::Model& model,
                                  const kernels::Kernels& kernels,
                                  const kernels::Kernels* host_kernels) {
  schedule::StepModel step =
      make_step_model(model, batch_shape(config), parameter_table(config, model), kernels,
                      host_kernels == nullptr ? kernels : *host_kernels);
  const auto ranks = static_cast<std::int32_t>(config.parallel.data);
  step.view = config.parallel.server
                  ? parallel::make_server_view(step, 0, ranks)
                  : parallel::make_rank_view(step, 0, ranks,
                                             static_cast<std::int32_t>(config.parallel.zero));
  set_server_mode(config, step.view);
  step.view.tensor.ranks = static_cast<std::int32_t>(config.parallel.inner_ranks());
  step.view.tensor.contexts = static_cast<std::int32_t>(config.parallel.context);
  step.view.tensor.sharers =
      static_cast<std::int32_t>(config::tensor_share(config, 0).sharers(config.model.kv_heads));
  return step;
}

// Nothing for a plan that compiles all ranks, or of a rank that is alone.
std::optional<RankClasses> classes_of(const schedule::StepModel& step, const config::Config& config,
                                      WorldScope scope, const CostModel& costs) {
  if (scope == WorldScope::kAllRanks || ranks_of(step) == 1) return std::nullopt;
  return classify_ranks(step, sums_by_place(config), costs.links());
}

// Ends that differ by less are those of one collective.
constexpr double kSameEnd = 1e-9;

std::size_t slowest_of(const std::vector<RankFigures>& ranks) {
  std::size_t slowest = 0;
  for (std::size_t at = 1; at < ranks.size(); ++at) {
    const double later_s = ranks[at].end_s - ranks[slowest].end_s;
    const bool equal = std::abs(later_s) <= kSameEnd * ranks[slowest].end_s;
    if (equal ? ranks[at].compute_s > ranks[slowest].compute_s : later_s > 0) slowest = at;
  }
  return slowest;
}

std::size_t fullest_of(const std::vector<RankFigures>& ranks) {
  const auto fullest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const RankFigures& a, const RankFigures& b) { return a.peak_bytes < b.peak_bytes; });
  return static_cast<std::size_t>(fullest - ranks.begin());
}

// The parts that plans of the ranks of one world share.
struct PlannedRun {
  const schedule::StepModel& step;  // of rank 0
  const config::Config& config;
  const model::Model& model;
  const HardwareProfile& hardware;
  CostModel& costs;
};

// The plan of another rank with the same options. Without a simulated world its step is simulated
// alone.
std::shared_ptr<const Plan> plan_of(const PlannedRun& run, const PlannedWorld& world,
                                    std::size_t at, const schedule::StepOptions& options) {
  const schedule::StepModel step = step_of_rank(run.step, world.figures[at].rank);
  const Trials trials(step, run.costs, fixed_need(run.config, step));
  Compiled compiled = trials.exact(options);
  run.costs.apply(compiled.schedules[StepKind::kRedo]);
  if (world.is_simulated()) {
    run.costs.apply(compiled.schedules[StepKind::kTraining]);
    compiled.simulation = world.simulation;
    compiled.times = world.times[at];
  } else {
    trials.simulate(compiled);
  }
  auto plan = std::make_shared<Plan>(finish_plan(std::move(compiled), step, run.model, run.hardware,
                                                 run.costs.simulation_model()));
  add_verbs(*plan, run.config, run.model);
  return plan;
}

// The figures of the job, in addition to those of rank 0.
void add_world(Plan& plan, PlannedWorld world, const PlannedRun& run) {
  if (world.is_simulated()) {
    plan.critical_path = std::move(world.path);
    plan.bound_by = std::string(resource_name(plan.critical_path.longest()));
    plan.pipeline_span_s = world.span_s;
    plan.pipeline_bubble_s = world.bubble_s;
    plan.slowest = slowest_of(world.figures);
  }
  plan.fullest = fullest_of(world.figures);
  if (plan.slowest > 0) plan.slowest_plan = plan_of(run, world, plan.slowest, plan.options);
  if (plan.fullest > 0) {
    plan.fullest_plan = plan.fullest == plan.slowest
                            ? plan.slowest_plan
                            : plan_of(run, world, plan.fullest, plan.options);
  }
  plan.ranks = std::move(world.figures);
}

// Proves the schedules of the choice, and makes the plan of them.
Plan settle_plan(Compiled fastest, const PlannedRun& run,
                 const std::optional<RankClasses>& classes) {
  run.costs.apply(fastest.schedules[StepKind::kRedo]);
  PlannedWorld world;
  const bool is_alone = ranks_of(run.step) == 1;
  if (is_alone) {
    check_schedules(fastest.schedules, fastest.options, budgets_of(run.config));
  } else if (classes) {
    world = simulate_classes(run.step, *classes, fastest, run.costs);
    fastest.simulation = world.simulation;
    fastest.times = world.times.front();
  } else {
    world = check_ranks(run.step, fastest, budgets_of(run.config), run.costs);
  }
  // Ranks without stages are not simulated together unless by classes: the first one stands for all.
  if (!is_alone && !world.is_simulated()) {
    RankFigures& first = world.figures.front();
    first.end_s = fastest.simulation.total_s;
    first.shares =
        world_shares(fastest.schedules[StepKind::kTraining], fastest.times, {}, {0}).ranks.front();
  }
  Plan plan = finish_plan(std::move(fastest), run.step, run.model, run.hardware,
                          run.costs.simulation_model());
  if (!is_alone) add_world(plan, std::move(world), run);
  plan.by_classes = classes.has_value();
  add_verbs(plan, run.config, run.model);
  return plan;
}

// A refusal names the unit that no plan can hold.
Refusal with_largest_unit(Refusal refusal, const config::Config& config,
                          const schedule::StepModel& step) {
  UnitNeed largest = largest_unit_need(step, config.memory.chunk_bytes);
  if (largest.device_bytes > budgets_of(config).front()) refusal.too_large = std::move(largest);
  return refusal;
}

// Throws InputError where nothing is left.
void leave_out_long_steps(const config::Config& config, const schedule::StepModel& step,
                          std::vector<CandidateGroup>& groups) {
  if (groups.empty()) {
    throw InputError(
        "memory.place.optimizer = \"device\" needs memory.place.weight and "
        "memory.place.gradient = \"device\" too");
  }

  std::uint64_t least_size = std::numeric_limits<std::uint64_t>::max();
  std::erase_if(groups, [&](const CandidateGroup& group) {
    const std::uint64_t size = step_size(step, group.back());
    least_size = std::min(least_size, size);
    return size > kMostStepInstructions;
  });
  if (groups.empty()) {
    throw InputError("a step of this configuration would have about " + std::to_string(least_size) +
                     " instructions, and at most " + std::to_string(kMostStepInstructions) +
                     " can be planned; lower " +
                     (config.train.batch > 0 ? "train.batch" : "train.accumulate") +
                     " or model.layers");
  }
}

std::uint64_t missing_bytes(const Refusal& refusal) {
  const TierBytes missing = beyond(refusal.needed_bytes, refusal.available_bytes);
  return std::accumulate(missing.begin(), missing.end(), std::uint64_t{0});
}

bool all_fit(const std::vector<RankFigures>& ranks, const TierBytes& budgets) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const RankFigures& rank) { return fits(rank.peak_bytes, budgets); });
}

// The fastest plan of all cuts into stages. If none fits, the refusal that misses the fewest bytes.
// others: gives the ranks whose needs a trial looks at in addition to that of rank 0.
std::variant<Plan, Refusal> plan_pipeline(const config::Config& config, schedule::StepModel step,
                                          const model::Model& model,
                                          const HardwareProfile& hardware, CostModel& costs,
                                          WorldScope scope, decltype(&other_ranks) others) {
  const TierBytes budgets = budgets_of(config);
  const schedule::PipelineOrder order = choose_order(config);
  std::optional<Compiled> best;
  std::optional<Refusal> refused;
  for (const StageCut& cut : stage_cuts(config, step, order, costs)) {
    step.pipeline = parallel::make_stage_view(order, cut, 0);
    std::vector<CandidateGroup> groups = pipeline_candidates(config, step);
    leave_out_long_steps(config, step, groups);
    std::optional<RankClasses> classes = classes_of(step, config, scope, costs);
    // Whole tensors are dealt to ranks by their sizes, so the first rank may have none of a stage.
    const bool alike = !sums_by_place(config) && !config.parallel.server &&
                       !kernels::needs_whole_tensors(step.optimizer);
    if (classes && alike) classes = one_class_each(*classes);
    Trials trials(step, costs, fixed_need(config, step), others(step),
                  classes ? ranks_of_classes(step, *classes) : ranks_of_pipeline(step),
                  classes ? &*classes : nullptr);
    auto found = search_pipeline(config, step, budgets, trials, std::move(groups));
    if (auto* refusal = std::get_if<Refusal>(&found)) {
      if (!refused || missing_bytes(*refusal) < missing_bytes(*refused)) {
        refused = with_largest_unit(std::move(*refusal), config, step);
      }
      continue;
    }
    auto& compiled = std::get<Compiled>(found);
    if (!best || compiled.simulation.total_s < best->simulation.total_s) best = std::move(compiled);
    if (is_long_search(trials)) break;  // a long step: other cuts are not worth their trials
  }
  if (!best) return std::move(*refused);
  step.pipeline.units = best->options.stages;
  Plan plan = settle_plan(std::move(*best), {step, config, model, hardware, costs},
                          classes_of(step, config, scope, costs));
  plan.bound_s = least_pipeline_s(config, step, costs);
  return plan;
}

// On paper the ranks that are likely to need most stand for all, unless another one needs more.
std::variant<Plan, Refusal> plan_pipeline(const config::Config& config,
                                          const schedule::StepModel& step,
                                          const model::Model& model,
                                          const HardwareProfile& hardware, CostModel& costs,
                                          WorldScope scope) {
  if (scope == WorldScope::kClasses) {
    auto likely = plan_pipeline(config, step, model, hardware, costs, scope, &likely_fullest_ranks);
    const auto* plan = std::get_if<Plan>(&likely);
    if (plan == nullptr || all_fit(plan->ranks, budgets_of(config))) return likely;
  }
  return plan_pipeline(config, step, model, hardware, costs, scope, &other_ranks);
}

}  // namespace

double least_step_s(const config::Config& given, const model::Model& model,
                    const kernels::Kernels& kernels, const HardwareProfile& hardware,
                    const kernels::Kernels* host_kernels) {
  config::Config config = with_places_of_stage(given);
  settle_auto_budgets(config, hardware);  // of a caller that settled none
  const model::BatchShape batch = batch_shape(config);
  const schedule::StepModel step_model = step_model_of(config, model, kernels, host_kernels);
  const TierBytes budgets = budgets_of(config);
  CostModel costs(config, model, batch, hardware);
  if (has_order(config)) return least_pipeline_s(config, step_model, costs);
  std::vector<CandidateGroup> groups = plan_candidates(config, step_model);
  if (groups.empty()) return 0;
  Trials trials(step_model, costs, {});
  return Search(config, step_model, budgets, costs, trials, std::move(groups)).least_step_s();
}

Plan plan_rank(const config::Config& config, const model::Model& model,
               const kernels::Kernels& kernels, const HardwareProfile& hardware,
               const schedule::StepOptions& options, std::int32_t rank,
               const kernels::Kernels* host_kernels) {
  check_rank_counts(config);
  const model::BatchShape batch = batch_shape(config);
  schedule::StepModel step = step_model_of(config, model, kernels, host_kernels);
  if (has_order(config)) {
    schedule::PipelineOrder order = choose_order(config);
    check_stages(options.stages, order, step.units.size());
    step.pipeline = parallel::make_stage_view(order, options.stages, 0);
  }
  step = step_of_rank(std::move(step), rank);
  check_options(options, config, step);
  CostModel costs(config, model, batch, hardware);
  const Trials trials(step, costs, fixed_need(config, step));
  Compiled compiled = trials.exact(options);
  trials.simulate(compiled);
  costs.apply(compiled.schedules[StepKind::kRedo]);
  Plan plan = finish_plan(std::move(compiled), step, model, hardware, costs.simulation_model());
  add_verbs(plan, config, model);
  plan.ranks.push_back(figures_of(plan.training(), costs.links()));
  plan.ranks.back().peak_bytes = plan.peak_bytes;
  return plan;
}

std::variant<Plan, Refusal> make_plan(const config::Config& given, const model::Model& model,
                                      const kernels::Kernels& kernels,
                                      const HardwareProfile& hardware,
                                      const kernels::Kernels* host_kernels, WorldScope scope) {
  // Where sums depend on a rank's place, each rank is a class of its own.
  const bool many = scope == WorldScope::kClasses && !sums_by_place(given);
  check_rank_counts(given, many ? kMostRanksOnPaper : kMostPlannedRanks);
  const config::Config config = with_places_of_stage(given);
  const model::BatchShape batch = batch_shape(config);
  const schedule::StepModel step_model = step_model_of(config, model, kernels, host_kernels);
  const TierBytes budgets = budgets_of(config);
  CostModel costs(config, model, batch, hardware);
  if (has_order(config)) return plan_pipeline(config, step_model, model, hardware, costs, scope);
  std::vector<CandidateGroup> groups = plan_candidates(config, step_model);
  leave_out_long_steps(config, step_model, groups);
  Trials trials(step_model, costs, fixed_need(config, step_model), other_ranks(step_model));
  Search search(config, step_model, budgets, costs, trials, std::move(groups));
  if (!search.fits()) return with_largest_unit(search.refusal(), config, step_model);
  Plan plan = settle_plan(search.fastest(), {step_model, config, model, hardware, costs},
                          classes_of(step_model, config, scope, costs));
  plan.bound_s = search.bound_s();
  plan.tried = search.tried();
  return plan;
}

}  // namespace sluice::planner
