// Staging takes as many pieces in a coarse schedule as in an exact one, since the depth of a ring
// does not depend on the size of its pieces. So before a coarse schedule is packed, its staging
// pieces shrink to their exact size, and the packing shows the exact need.
#include "engine/planner/trial/trials.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/step_size.hpp"
#include "engine/planner/trial/coarse_step.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"
#include "engine/schedule/compile/rank_share.hpp"
#include "engine/schedule/compile/step_builder.hpp"
#include "engine/schedule/compile/step_fields.hpp"
#include "engine/schedule/merge.hpp"

namespace sluice::planner {
namespace {

// Pieces of the largest unit in a step whose time is asked for, and where only its need is. A ring of
// few pieces tells its bytes; its time takes more of them.
constexpr std::uint64_t kTimedPieces = 32;
constexpr std::uint64_t kPackedPieces = 6;
// Between a first micro-batch and a last, one stands for all others.
constexpr std::int32_t kBetween = 1;
// In the order "unit" a micro-batch's gradient may wait for the memory of the one before.
constexpr std::int32_t kBetweenByUnit = 3;

template <typename Value>
void append(std::string& key, const Value& value) {
  if constexpr (std::has_unique_object_representations_v<Value>) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  } else {
    append(key, value.size());
    for (const auto& each : value) append(key, each);
  }
}

// Options with equal keys are equal.
std::string key_of(const schedule::StepOptions& options) {
  std::string key;
  schedule::for_each_field(
      options, [&](const schedule::StepField&, const auto& value) { append(key, value); });
  return key;
}

// From the end of the first round to the end of the second, in the order "microbatch".
double period_s(const schedule::Schedule& training, std::int32_t data_ranks,
                const std::vector<schedule::InstructionTimes>& times) {
  std::array<double, 2> ends{};
  for (const schedule::Instruction& instruction : training.instructions) {
    if (instruction.op != schedule::Op::kBackwardWeight) continue;
    const auto round = static_cast<std::size_t>(instruction.microbatch / data_ranks);
    if (round < ends.size()) ends[round] = std::max(ends[round], times[instruction.id].end_s);
  }
  return ends[1] - ends[0];
}

double compute_s(const schedule::Simulation& simulation) {
  return simulation.busy_s.front()[static_cast<std::size_t>(schedule::Lane::kCompute)];
}

schedule::StepOptions without_ring(schedule::StepOptions options) {
  options.update_lookahead = 0;
  options.keeps_update_ring = false;
  return options;
}

// A first step that defers all updates makes none.
bool has_ring(const schedule::StepOptions& options, schedule::StepKind kind) {
  if (kind == schedule::StepKind::kEvaluation || kind == schedule::StepKind::kSave) return false;
  return kind != schedule::StepKind::kFirst ||
         options.update != schedule::UpdatePlacement::kNextForward;
}

}  // namespace

const Trial& Trials::coarse(const schedule::StepOptions& options) {
  const auto [found, fresh] = known_.trials.try_emplace(key_of(options));
  if (fresh) found->second = measure(options);
  if (fresh && found->second.is_exact) known_.exact.emplace_back(found->second.seconds, options);
  return found->second;
}

std::optional<Compiled> Trials::fastest_exact(double seconds, const TierBytes& budgets) const {
  std::vector<const std::pair<double, schedule::StepOptions>*> faster;
  for (const auto& trial : known_.exact) {
    if (trial.first < seconds) faster.push_back(&trial);
  }
  std::stable_sort(faster.begin(), faster.end(),
                   [](const auto* one, const auto* other) { return one->first < other->first; });
  for (const auto* trial : faster) {
    if (!fits(known_.trials.at(key_of(trial->second)).need, budgets)) continue;
    Compiled compiled = place_all(trial->second, budgets);
    if (!fits(compiled.most_bytes, budgets)) continue;
    simulate(compiled);
    return compiled;
  }
  return std::nullopt;
}

const TierBytes& Trials::coarse_need(const schedule::StepOptions& options) {
  if (!pipeline_.empty()) return exact_need(options);
  const auto [found, fresh] = known_needs_.try_emplace(key_of(options));
  if (fresh) found->second = measure_need(options);
  return found->second;
}

const TierBytes& Trials::exact_need(const schedule::StepOptions& options) {
  const std::string key = key_of(options);
  const auto [found, fresh] = known_exact_needs_.try_emplace(key);
  if (!fresh) return found->second;
  Needs needs = std::move(needs_of_some_[key]);
  needs_of_some_.erase(key);
  for (std::size_t rank = 0; rank < rank_count(); ++rank) count(needs, rank, options);
  return found->second = needs.most;
}

void Trials::count(Needs& needs, std::size_t rank, const schedule::StepOptions& options) const {
  needs.counted.resize(rank_count());
  if (needs.counted[rank]) return;
  needs.counted[rank] = true;
  const TierBytes need = measure_exact_need(rank == 0 ? model_ : other_ranks_[rank - 1], options);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    needs.most[tier] = std::max(needs.most[tier], need[tier]);
  }
}

bool Trials::exact_fits(const schedule::StepOptions& options, const TierBytes& budgets) {
  const std::string key = key_of(options);
  const auto known = known_exact_needs_.find(key);
  if (known != known_exact_needs_.end()) return fits(known->second, budgets);
  Needs& needs = needs_of_some_[key];
  for (std::size_t i = 0; i < rank_count(); ++i) {
    if (!fits(needs.most, budgets)) return false;
    const std::size_t rank = (fullest_ + i) % rank_count();
    count(needs, rank, options);
    if (fits(needs.most, budgets)) continue;
    fullest_ = rank;
    return false;
  }
  known_exact_needs_[key] = needs.most;
  needs_of_some_.erase(key);
  return true;
}

bool Trials::coarse_fits(const schedule::StepOptions& options, const TierBytes& budgets) {
  return pipeline_.empty() ? fits(coarse_need(options), budgets) : exact_fits(options, budgets);
}

TierBytes Trials::least_need(const schedule::StepOptions& options) const {
  const auto found = needs_of_some_.find(key_of(options));
  return found == needs_of_some_.end() ? TierBytes{} : found->second.most;
}

TierBytes Trials::need_of(const schedule::Schedule& training) const {
  const std::array<const schedule::Schedule*, 1> schedules{&training};
  runtime::MemoryNeed need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
  need.fixed = fixed_;
  return need.peak_bytes();
}

// The need of all micro-batches, from that of `few` of them.
TierBytes Trials::need_of_all(const schedule::StepOptions& options, TierBytes need,
                              std::int32_t few, std::uint64_t pieces,
                              packing::PackingEffort effort) const {
  const auto missing =
      static_cast<std::uint64_t>(schedule::own_microbatch_count(model_, options) - few);
  if (missing == 0) return need;
  if (options.order == schedule::ComputeOrder::kMicrobatch) {
    // Only tokens and loss of each micro-batch have homes of their own.
    const std::uint64_t each = round_up(model_.token_bytes, schedule::kDirectAlignmentBytes) +
                               schedule::kDirectAlignmentBytes;
    need[static_cast<std::size_t>(Tier::kPinned)] += missing * each;
    return need;
  }
  // Not two: values whose next use is near stay on the device, and of two micro-batches most do.
  constexpr std::int32_t kFewer = 2 + kBetween;
  const CoarseStep coarse(model_, options, kFewer, pieces);
  schedule::Schedule fewer = coarse.generate();
  coarse.shrink_staging(fewer);
  schedule::place_buffers(fewer, kTensorAlignmentBytes, effort, &known_.packings);
  const TierBytes less = need_of(fewer);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    const std::uint64_t more = need[tier] - std::min(need[tier], less[tier]);
    need[tier] += ceil_div(missing * more, static_cast<std::uint64_t>(few - kFewer));
  }
  return need;
}

TierBytes Trials::measure_need(const schedule::StepOptions& options) const {
  if (step_size(model_, options) <= kSmallStepInstructions) {
    schedule::Schedule training =
        schedule::generate(model_, options, schedule::StepKind::kTraining);
    schedule::place_buffers(training, kTensorAlignmentBytes, packing::PackingEffort::kQuick,
                            &known_.packings);
    return need_of(training);
  }
  constexpr auto kEffort = packing::PackingEffort::kQuick;
  const bool by_unit = options.order == schedule::ComputeOrder::kUnit;
  const std::int32_t few = coarse_rounds(model_, options, by_unit ? kBetween + 1 : kBetween);
  const CoarseStep coarse(model_, options, few, kPackedPieces);
  schedule::Schedule training = coarse.generate();
  coarse.shrink_staging(training);
  schedule::place_buffers(training, kTensorAlignmentBytes, kEffort, &known_.packings);
  return need_of_all(options, need_of(training), few, kPackedPieces, kEffort);
}

schedule::Schedule Trials::priced_world(const schedule::StepOptions& options) const {
  std::vector<schedule::Schedule> lists;
  for (const schedule::StepModel& rank : pipeline_) {
    lists.push_back(schedule::compile(rank, options, schedule::StepKind::kTraining));
    if (classes_ == nullptr) continue;
    costs_.apply(lists.back());
    lists.back() = list_of_class(std::move(lists.back()), *classes_);
  }
  schedule::Schedule world = schedule::merge(lists);
  if (classes_ == nullptr) costs_.apply(world);
  return world;
}

Trial Trials::measure_pipeline(const schedule::StepOptions& options) {
  Trial trial{exact_need(options)};
  const schedule::Schedule world = priced_world(options);
  instructions_ += world.instructions.size();
  trial.seconds = schedule::simulate(world, costs_.simulation_model()).total_s;
  return trial;
}

Trial Trials::measure_exactly(const schedule::StepOptions& options) {
  const Compiled step = training(options);
  instructions_ += step.schedules[schedule::StepKind::kTraining].instructions.size();
  return {step.most_bytes, step.simulation.total_s, compute_s(step.simulation), true};
}

Trial Trials::measure(const schedule::StepOptions& options) {
  if (!pipeline_.empty()) return measure_pipeline(options);
  const bool by_unit = options.order == schedule::ComputeOrder::kUnit;
  const std::int32_t few = coarse_rounds(model_, options, by_unit ? kBetweenByUnit : kBetween);
  const CoarseStep coarse(model_, options, few, kTimedPieces);
  if (coarse.is_exact()) return measure_exactly(options);
  constexpr auto kEffort = packing::PackingEffort::kCoarse;
  const std::int32_t missing = coarse.missing_rounds();
  schedule::Schedule training = coarse.generate();
  schedule::link(training);
  coarse.shrink_staging(training);
  schedule::pack(training, kTensorAlignmentBytes, kEffort, &known_.packings);
  Trial trial{need_of_all(options, need_of(training), few, kTimedPieces, kEffort)};
  instructions_ += training.instructions.size();
  coarse.price(training, costs_);
  if (by_unit) coarse.lengthen_rounds(training);
  std::vector<schedule::InstructionTimes> times;
  const schedule::Simulation simulation =
      schedule::simulate(training, costs_.simulation_model(), nullptr, 0, &times);
  trial.seconds = simulation.total_s;
  trial.compute_s = compute_s(simulation);
  if (!by_unit && missing > 0) {
    trial.seconds += missing * period_s(training, model_.view.ranks, times);
    trial.compute_s += missing * trial.compute_s / few;
  }
  return trial;
}

// Compiled without deps, which take half of the time.
TierBytes Trials::measure_exact_need(const schedule::StepModel& model,
                                     const schedule::StepOptions& options) const {
  schedule::StepSchedules schedules;
  for (const schedule::StepKind kind : schedule::kStepKinds) {
    if (!schedule::has_step(options, kind)) continue;
    schedules[kind] = schedule::generate_placed(model, options, kind, &known_.packings);
    if (classes_ != nullptr) instructions_ += schedules[kind].instructions.size();
    schedules[kind].instructions.clear();
  }
  runtime::MemoryNeed need =
      runtime::memory_need(schedules.of(options), runtime::StateStore::kWindowBytes);
  need.fixed = fixed_;
  return need.peak_bytes();
}

TierBytes Trials::with_other_ranks(TierBytes need, const schedule::StepOptions& options) const {
  for (const schedule::StepModel& other : other_ranks_) {
    const TierBytes theirs = measure_exact_need(other, options);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      need[tier] = std::max(need[tier], theirs[tier]);
    }
  }
  return need;
}

Compiled Trials::place_training(const schedule::StepOptions& options) const {
  return place_step(options, schedule::generate(model_, options, schedule::StepKind::kTraining));
}

std::optional<Compiled> Trials::place_training(const schedule::StepOptions& options,
                                               const TierBytes& budgets) const {
  schedule::Schedule training = schedule::generate(model_, options, schedule::StepKind::kTraining);
  const std::uint64_t pinned = budgets[static_cast<std::size_t>(Tier::kPinned)];
  if (schedule::least_pinned_bytes(training) > pinned) return std::nullopt;
  Compiled compiled = place_step(options, std::move(training));
  if (!fits(compiled.most_bytes, budgets)) return std::nullopt;
  return compiled;
}

// The places of a generated training step.
Compiled Trials::place_step(const schedule::StepOptions& options,
                            schedule::Schedule training) const {
  schedule::place_buffers(training, kTensorAlignmentBytes, packing::PackingEffort::kQuick,
                          &known_.packings);
  Compiled compiled;
  compiled.options = options;
  compiled.schedules[schedule::StepKind::kTraining] = std::move(training);
  const std::array<const schedule::Schedule*, 1> schedules{
      &compiled.schedules[schedule::StepKind::kTraining]};
  compiled.need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
  compiled.need.fixed = fixed_;
  compiled.most_bytes = compiled.need.peak_bytes();
  return compiled;
}

Compiled Trials::training(const schedule::StepOptions& options) const {
  Compiled compiled = place_training(options);
  simulate_alone(compiled);
  return compiled;
}

void Trials::complete(Compiled& compiled, const Compiled* alike) const {
  const bool shares =
      alike != nullptr && without_ring(alike->options) == without_ring(compiled.options);
  for (const schedule::StepKind kind : schedule::kStepKinds) {
    const bool missing = compiled.schedules[kind].instructions.empty();
    if (!missing || !schedule::has_step(compiled.options, kind)) continue;
    if (shares && !has_ring(compiled.options, kind)) {
      compiled.schedules[kind] = alike->schedules[kind];
      compiled.linked[static_cast<std::size_t>(kind)] =
          alike->linked[static_cast<std::size_t>(kind)];
      continue;
    }
    compiled.schedules[kind] =
        schedule::generate_placed(model_, compiled.options, kind, &known_.packings);
  }
  compiled.need = runtime::memory_need(compiled.schedules.of(compiled.options),
                                       runtime::StateStore::kWindowBytes);
  compiled.need.fixed = fixed_;
  compiled.most_bytes = with_other_ranks(compiled.need.peak_bytes(), compiled.options);
}

Compiled Trials::place_all(const schedule::StepOptions& options, const TierBytes& budgets) const {
  Compiled compiled = place_training(options);
  if (fits(compiled.most_bytes, budgets)) complete(compiled);
  return compiled;
}

void Trials::link_step(Compiled& compiled, schedule::StepKind kind) {
  bool& linked = compiled.linked[static_cast<std::size_t>(kind)];
  if (!linked && schedule::has_step(compiled.options, kind)) {
    schedule::link_placed(compiled.schedules[kind]);
  }
  linked = true;
}

void Trials::link(Compiled& compiled) {
  for (const schedule::StepKind kind : schedule::kStepKinds) link_step(compiled, kind);
}

Compiled Trials::exact(const schedule::StepOptions& options) const {
  Compiled compiled;
  compiled.options = options;
  compiled.schedules = schedule::compile_all(model_, options);
  compiled.linked.fill(true);
  complete(compiled);
  return compiled;
}

double Trials::least_s(const Compiled& compiled) const {
  return schedule::busiest_lane_s(compiled.schedules[schedule::StepKind::kTraining],
                                  costs_.simulation_model());
}

// Without the ranks of a pipeline.
void Trials::simulate_alone(Compiled& compiled) const {
  link_step(compiled, schedule::StepKind::kTraining);
  schedule::Schedule& training = compiled.schedules[schedule::StepKind::kTraining];
  costs_.apply(training);
  compiled.simulation =
      schedule::simulate(training, costs_.simulation_model(), nullptr, 0, &compiled.times);
}

void Trials::simulate(Compiled& compiled) const {
  if (pipeline_.empty()) return simulate_alone(compiled);
  link_step(compiled, schedule::StepKind::kTraining);
  costs_.apply(compiled.schedules[schedule::StepKind::kTraining]);
  if (classes_ != nullptr) {
    const auto known = known_.trials.find(key_of(compiled.options));
    SLUICE_CHECK(known != known_.trials.end());
    compiled.simulation.total_s = known->second.seconds;
    return;
  }
  const schedule::Schedule world = priced_world(compiled.options);
  std::vector<schedule::InstructionTimes> times;
  compiled.simulation = schedule::simulate(world, costs_.simulation_model(), nullptr, 0, &times);
  // The merge keeps the order of each rank's list.
  compiled.times.clear();
  for (const schedule::Instruction& instruction : world.instructions) {
    if (instruction.rank == 0) compiled.times.push_back(times[instruction.id]);
  }
}

}  // namespace sluice::planner
