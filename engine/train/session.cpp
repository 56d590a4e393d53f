#include "engine/train/session.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/error.hpp"
#include "engine/checkpoint/huggingface_export.hpp"
#include "engine/config/shapes.hpp"
#include "engine/run/storage_shares.hpp"
#include "engine/train/commit_loader.hpp"
#include "offload/storage_file.hpp"

namespace sluice::train {
namespace {

// A pass through a schedule that takes this much longer than planned is hung.
constexpr double kDeadlinePerPlannedStep = 20.0;

// A pass that takes far longer than planned is taken for hung. Short plans get the default.
double deadline_seconds(const planner::Plan& plan) {
  // Ranks other than the first one of a pipeline have simulated their own part alone.
  const double step_s = plan.simulation.total_s * plan.pipeline.ranks();
  return std::max(kDefaultDeadlineSeconds, kDeadlinePerPlannedStep * step_s);
}

// The plan is exact: the device is asked for no byte more.
std::unique_ptr<device::Device> make_device(const Backend& backend, const planner::Plan& plan) {
  return backend.make_device(std::max<std::uint64_t>(plan.peak_bytes[0], kPageBytes));
}

// One of `steps` even shares of a schedule's bytes. All together are the whole.
std::uint64_t even_share(std::uint64_t bytes, std::size_t at, std::size_t steps) {
  return bytes * (at + 1) / steps - bytes * at / steps;
}

schedule::LinkBytes even_share(const schedule::LinkBytes& bytes, std::size_t at,
                               std::size_t steps) {
  const auto of = [&](std::uint64_t link) { return even_share(link, at, steps); };
  return {of(bytes.upload), of(bytes.download), of(bytes.storage_read), of(bytes.storage_write)};
}

collectives::ByteCounts even_share(const collectives::ByteCounts& bytes, std::size_t at,
                                   std::size_t steps) {
  return {even_share(bytes.sent, at, steps), even_share(bytes.received, at, steps)};
}

// Gives each step its share of the counts of their schedule, which the last one has.
void share_counts(std::vector<StepOutcome>& outcomes) {
  const std::size_t steps = outcomes.size();
  const StepOutcome all = outcomes.back();
  for (std::size_t at = 0; at < steps; ++at) {
    StepOutcome& each = outcomes[at];
    each.moved = even_share(all.moved, at, steps);
    each.messages = even_share(all.messages, at, steps);
    each.stage_messages = even_share(all.stage_messages, at, steps);
    each.inner_messages = even_share(all.inner_messages, at, steps);
    each.tag_seconds = all.tag_seconds / static_cast<double>(steps);
  }
}

const char* engine_kind(config::Config::StorageEngineKind kind) {
  switch (kind) {
    case config::Config::StorageEngineKind::kIoUring:
      return "io_uring";
    case config::Config::StorageEngineKind::kPosix:
      return "posix";
    case config::Config::StorageEngineKind::kAuto:
      break;
  }
  return "auto";
}

// Runs without state on storage have no engine, but a durable run writes its log with it, even on a
// rank that keeps no state.
std::unique_ptr<offload::StorageEngine> make_storage(const config::Config& config,
                                                     const planner::Plan& plan,
                                                     const StorageWrapper& wrap) {
  if (plan.need.storage_bytes == 0 && !plan.options.durable) return nullptr;
  offload::StorageOptions options;
  options.submission_thread = config.memory.storage_sqpoll;
  auto engine = offload::make_storage_engine(engine_kind(config.memory.storage_engine), options);
  return wrap ? wrap(std::move(engine)) : std::move(engine);
}

// Files of a run that has not committed yet are removed when it ends.
std::unique_ptr<checkpoint::UncommittedFiles> uncommitted_files(const config::Config& config,
                                                                const planner::Plan& plan,
                                                                const RunId& run) {
  if (!plan.options.durable) return nullptr;
  return std::make_unique<checkpoint::UncommittedFiles>(config.checkpoint.dir, run.hex(),
                                                        config.memory.storage_paths);
}

std::unique_ptr<offload::StateLog> make_log(offload::StorageEngine* engine,
                                            const checkpoint::UncommittedFiles* files,
                                            const planner::Plan& plan) {
  if (files == nullptr) return nullptr;
  return std::make_unique<offload::StateLog>(*engine, files->log_path(), plan.need.fixed.log_bytes);
}

runtime::MemoryNeed resting_need(const planner::Plan& plan) {
  runtime::MemoryNeed need = runtime::resting_need(plan.training());
  need.fixed = plan.need.fixed;
  return need;
}

// Without scaling outside fp16.
runtime::LossScaleRule loss_scale_rule(const config::Config& config) {
  const auto& train = config.train;
  runtime::LossScaleRule rule;
  if (train.precision != config::Config::Precision::kFP16) return rule;
  rule.dynamic = train.loss_scaling == config::Config::LossScaling::kDynamic;
  rule.initial = train.loss_scale;
  rule.window = train.loss_scale_window;
  rule.patience = train.loss_scale_patience;
  return rule;
}

}  // namespace

Session::Ranks::Ranks(const RankLinks& links)
    : alone(collectives::make_single_communicator()),
      data(links.data == nullptr ? *alone : *links.data),
      control(links.control == nullptr ? *alone : *links.control),
      messages(links.messages == nullptr ? *alone : *links.messages),
      inner(links.inner == nullptr ? *alone : *links.inner) {}

// Members are made in the order of the header. The log comes before the storage files that it
// names, and memory before the programs that map their windows into it.
Session::Session(const config::Config& config, const model::Model& model, const planner::Plan& plan,
                 const Backend& backend, const StorageWrapper& wrap_storage, const RunId& run,
                 const RankLinks& links)
    : config_(config),
      plan_(plan),
      parameters_(config::parameter_table(config, model)),
      ranks_(links),
      device_(make_device(backend, plan)),
      ledger_(
          {config.memory.device_bytes, config.memory.pinned_bytes, config.memory.storage_bytes}),
      storage_(make_storage(config, plan, wrap_storage)),
      files_(uncommitted_files(config, plan, run)),
      log_charge_(ledger_.reserve(Tier::kStorage, Category::kOptimizer, plan.need.fixed.log_bytes)),
      log_(make_log(storage_.get(), files_.get(), plan)),
      memory_(*device_, ledger_, storage_.get(), config.memory.storage_paths, plan.need, run,
              plan.options.durable, run::choose_storage_shares(config, plan.need.storage_bytes)),
      durable_(log_ ? std::make_unique<runtime::DurableState>(memory_, *log_, wait_for_commits())
                    : nullptr),
      loss_scaler_(loss_scale_rule(config)),
      runner_(model, batch(), plan.options.microbatches, parameters_, *backend.device_kernels,
              *backend.host_kernels, {ranks_.data, ranks_.inner, ranks_.messages},
              gpu_messages(backend, plan)),
      executor_(*device_, memory_.storage(), runner_, deadline_seconds(plan), durable_.get()),
      store_(*device_, memory_, plan.training(), {plan.view, plan.pipeline, ranks_.control},
             durable_.get()),
      state_(model, parameters_, store_),
      use_(resting_need(plan)) {
  SLUICE_CHECK(ranks_.data.size() == plan.world_ranks() && ranks_.data.rank() == plan.world_rank());
  SLUICE_CHECK(plan.pipeline.is_alone() || ranks_.messages.size() == plan.world_ranks());
  SLUICE_CHECK(plan.view.tensor.is_alone() || ranks_.inner.size() == plan.world_ranks());
  if (durable_) {
    files_->watch(memory_.storage().space().file_paths());
    files_->watch({files_->log_path()});
  }
  for (const schedule::StepKind kind : schedule::kStepKinds) {
    if (!schedule::has_step(plan.options, kind)) continue;
    auto& programs = programs_[static_cast<std::size_t>(kind)];
    memory_.take_handed_out();
    programs.emplace(plan.schedules[kind], memory_, plan.speculates());
    use_.add_program(planner::verb_of(kind), memory_.take_handed_out());
    executor_.prepare(programs->get(false));
  }
}

std::span<std::byte> Session::export_piece() {
  const std::uint64_t homes_end = runtime::persistent_pinned_bytes(plan_.training());
  return memory_.io_buffer(homes_end,
                           checkpoint::export_piece_bytes(memory_.pinned_bytes() - homes_end));
}

// Ranks on a GPU, whose memory the groups of the host cannot read.
std::optional<runtime::GpuMessages> Session::gpu_messages(const Backend& backend,
                                                          const planner::Plan& plan) {
  if (backend.name != "cuda" || plan.is_alone()) return std::nullopt;
  return runtime::GpuMessages{memory_.staging(), plan.view.tensor.ranks, deadline_seconds(plan)};
}

void Session::connect_gpus(const MakeGpuGroup& make) {
  gpu_group_ = make(*device_, executor_.comm_stream());
  SLUICE_CHECK(gpu_group_->size() == ranks_.data.size() &&
               gpu_group_->rank() == ranks_.data.rank());
  runner_.use_gpu_group(*gpu_group_);
}

model::BatchShape Session::batch() const {
  return config::batch_shape(config_);
}

// Tokens and losses lie in persistent pinned buffers, found by role and micro-batch.
const schedule::Buffer& Session::host_buffer(schedule::BufferRole role,
                                             std::int64_t microbatch) const {
  for (const schedule::Buffer& buffer : plan_.training().buffers) {
    if (buffer.persistent && buffer.role == role && buffer.microbatch == microbatch) return buffer;
  }
  throw InternalError("the schedule has no such buffer");
}

// A rank has buffers for the tokens and losses of its own micro-batches only, and only if its
// stages read tokens or have the head.
std::vector<std::int64_t> Session::own_microbatches(schedule::BufferRole role) const {
  std::vector<std::int64_t> own;
  for (const schedule::Buffer& buffer : plan_.training().buffers) {
    if (buffer.persistent && buffer.role == role) own.push_back(buffer.microbatch);
  }
  return own;
}

std::int32_t* Session::tokens_of(std::int64_t microbatch) {
  return reinterpret_cast<std::int32_t*>(
      memory_.address(host_buffer(schedule::BufferRole::kTokens, microbatch)));
}

double Session::loss_of(std::int64_t microbatch) {
  return *reinterpret_cast<const double*>(
      memory_.address(host_buffer(schedule::BufferRole::kLoss, microbatch)));
}

// The record names the run's files and homes; the files are kept from here on.
runtime::DurableState::Record Session::record_of(const checkpoint::CheckpointManifest& manifest) {
  return [this, manifest](const std::vector<runtime::SavedHome>& homes) {
    files_->check_watched();
    files_->keep();
    offload::TaggedSpace& storage = memory_.storage();
    return checkpoint::format_state_record(
        manifest, {storage.run(), files_->log_path(), offload::file_id(files_->log_path()),
                   storage.space().file_paths(), storage.space().bytes(), homes,
                   storage.space().shares(), static_cast<std::uint32_t>(ranks_.data.size()),
                   checkpoint::slices_of(state_.space(), checkpoint::units_of(homes))});
  };
}

// Runs one program. In a durable run the state log learns the copies that the pass reads and
// writes, and at a commit the record to store.
runtime::RunStatistics Session::pass(schedule::StepKind kind,
                                     const checkpoint::CheckpointManifest* commits,
                                     TraceRecorder* trace, std::uint32_t step) {
  const runtime::Program& program = this->program(kind);
  if (durable_) {
    durable_->begin(program.schedule(),
                    commits ? record_of(*commits) : runtime::DurableState::Record());
  }
  const runtime::RunStatistics statistics = executor_.run(program, trace, step);
  if (durable_) durable_->end();
  use_.note_steps(planner::verb_of(kind));
  return statistics;
}

schedule::LinkBytes Session::commit(const checkpoint::CheckpointManifest& manifest) {
  SLUICE_CHECK(durable_ != nullptr);
  const schedule::LinkBytes before = moved_bytes();
  drain();
  pass(schedule::StepKind::kSave, &manifest);
  return moved_bytes() - before;
}

std::vector<const schedule::Buffer*> Session::homes(const schedule::Schedule& schedule) {
  std::vector<const schedule::Buffer*> homes;
  for (const schedule::Residency& residency : schedule.entry) {
    homes.push_back(&schedule.buffers[residency.home]);
  }
  return homes;
}

// The storage_write lane waits, while the thread that uses the group between steps waits for the
// pass.
std::function<void()> Session::wait_for_commits() {
  if (ranks_.control.size() == 1) return {};
  return [&group = ranks_.control] {
    try {
      group.barrier();
    } catch (const collectives::CommunicationError& error) {
      throw error.in("the commit of all ranks");
    }
  };
}

void Session::load(const checkpoint::SavedParts& parts) {
  CommitLoader(store_, homes(plan_.schedules[schedule::StepKind::kEvaluation])).load(parts);
}

const runtime::Program& Session::program(schedule::StepKind kind) const {
  return programs_[static_cast<std::size_t>(kind)]->get(deferred_.flipped);
}

// A step that commits has drained before, so no update is pending at its entry.
schedule::StepKind Session::step_kind(bool commits) const {
  if (commits) return schedule::StepKind::kSaving;
  const bool first = plan_.carries_updates() && !deferred_.pending;
  return first ? schedule::StepKind::kFirst : schedule::StepKind::kTraining;
}

// The optimizer does not count skipped steps.
runtime::StepScalars Session::scalars_of(std::int64_t step, std::span<const double> lrs) {
  runtime::StepScalars scalars;
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    kernels::UpdateScalars& update = scalars.updates.emplace_back();
    update.lr = static_cast<float>(lrs[i]);
    update.step = step + static_cast<std::int64_t>(i) + 1 - loss_scaler_.state().skipped_steps;
  }
  scalars.update = scalars.updates.front();
  if (lrs.size() == 1) scalars.updates.clear();
  scalars.pending_update = deferred_.pending.value_or(scalars.update);
  scalars.clip = config_.train.clip;
  scalars.loss_scale = loss_scaler_.scale();
  scalars.skip_overflow = batch().dtype == DType::kF16;
  return scalars;
}

StepOutcome Session::train_step(std::int64_t step, double lr, const FillTokens& fill,
                                TraceRecorder* trace,
                                const checkpoint::CheckpointManifest* commits) {
  return train_steps(step, std::span(&lr, 1), fill, trace, commits).front();
}

// A step with deferred updates makes the pending ones of the step before, with that step's scalars.
// Afterwards its own are pending in their place.
std::vector<StepOutcome> Session::train_steps(std::int64_t step, std::span<const double> lrs,
                                              const FillTokens& fill, TraceRecorder* trace,
                                              const checkpoint::CheckpointManifest* commits) {
  SLUICE_CHECK(lrs.size() == static_cast<std::size_t>(plan_.updates()));
  const schedule::LinkBytes before = moved_bytes();
  const collectives::ByteCounts messages_before = message_bytes();
  const collectives::ByteCounts stage_messages_before = stage_message_bytes();
  const collectives::ByteCounts inner_messages_before = inner_message_bytes();
  const double tagged_before = tag_counters().hash_seconds;
  const double drain_s = commits != nullptr ? drain() : 0;
  for (const std::int64_t mb : own_microbatches(schedule::BufferRole::kTokens)) {
    fill(mb, tokens_of(mb), tokens_of(mb) + batch().rows());
  }
  const runtime::StepScalars scalars = scalars_of(step, lrs);
  runner_.set_scalars(scalars);
  const runtime::RunStatistics statistics =
      pass(step_kind(commits != nullptr), commits, trace, static_cast<std::uint32_t>(step + 1));
  if (plan_.carries_updates()) deferred_.pending = scalars.update;
  std::vector<StepOutcome> outcomes(lrs.size());
  note_updates(outcomes);
  StepOutcome& outcome = outcomes.back();
  outcome.stalls = statistics.stalls;
  if (plan_.speculates()) settle(outcome, scalars);
  outcome.moved = moved_bytes() - before;
  outcome.messages = message_bytes() - messages_before;
  outcome.stage_messages = stage_message_bytes() - stage_messages_before;
  outcome.inner_messages = inner_message_bytes() - inner_messages_before;
  outcome.tag_seconds = tag_counters().hash_seconds - tagged_before;
  share_counts(outcomes);
  if (outcome.stalls)
    outcome.stalls->add(runtime::StallCause::kUpdatePass, drain_s + outcome.redo_seconds);
  const double seconds = drain_s + statistics.seconds + outcome.redo_seconds;
  for (StepOutcome& each : outcomes) {
    each.seconds = seconds / static_cast<double>(outcomes.size());
    // The compute lane is idle during a drain and a redo.
    each.stalled_fraction =
        (drain_s + outcome.redo_seconds + statistics.compute_stalled_seconds) / seconds;
    each.loss_scale = loss_scaler_.scale();
  }
  loss_scaler_.finish_step(outcome.overflow);
  return outcomes;
}

// The losses and norms of each update.
void Session::note_updates(std::vector<StepOutcome>& outcomes) {
  const std::vector<double> losses = losses_of_microbatches();
  const auto each = static_cast<std::ptrdiff_t>(plan_.options.microbatches);
  auto loss = losses.begin();
  for (std::size_t update = 0; update < outcomes.size(); ++update, loss += each) {
    const runtime::StepResults& results = runner_.results(update);
    outcomes[update].grad_norm = results.grad_norm;
    outcomes[update].overflow = results.overflow;
    outcomes[update].overflowed_tensor = results.overflowed_tensor;
    outcomes[update].loss =
        std::accumulate(loss, loss + each, 0.0) / static_cast<double>(batch().rows() * each);
  }
}

// Ranks exchange the losses of their micro-batches, so that each adds all of them in the step's
// order. In a pipeline only the ranks with the head have losses. The ranks of a tensor group have
// the same ones, and the first of them brings them.
std::vector<double> Session::losses_of_microbatches() {
  const auto ranks = static_cast<std::size_t>(ranks_.control.size());
  const auto total = static_cast<std::size_t>(plan_.updates()) * plan_.options.microbatches;
  const auto data_ranks = static_cast<std::size_t>(plan_.view.ranks);
  std::vector<double> own;
  for (const std::int64_t mb : own_microbatches(schedule::BufferRole::kLoss)) {
    if (plan_.view.tensor.rank > 0) break;
    own.push_back(static_cast<double>(mb));
    own.push_back(loss_of(mb));
  }
  std::vector<std::uint64_t> counts(ranks);
  for (std::size_t rank = 0; rank < data_ranks; ++rank) {
    const auto tensor_ranks = static_cast<std::size_t>(plan_.view.tensor.ranks);
    const std::vector<std::int32_t>& arrivals = plan_.view.arrivals;
    const auto made =
        arrivals.empty()
            ? total / data_ranks
            : static_cast<std::size_t>(std::count(arrivals.begin(), arrivals.end(), rank));
    counts[first_head_rank() + rank * tensor_ranks] = 2 * made;
  }
  std::vector<double> all(2 * total);
  try {
    ranks_.control.all_gather(own.data(), all.data(), counts, DType::kF64);
  } catch (const collectives::CommunicationError& error) {
    throw error.in("the exchange of losses");
  }
  std::vector<double> losses(total);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    losses.at(static_cast<std::size_t>(all[2 * i])) = all[2 * i + 1];
  }
  return losses;
}

std::size_t Session::first_head_rank() const {
  const auto units = static_cast<std::int32_t>(plan_.options.placement.weight.size());
  schedule::RankView first = plan_.view;
  first.tensor.rank = 0;
  return static_cast<std::size_t>(
      schedule::world_rank(first, plan_.pipeline.rank_of(units - 1), 0));
}

// A speculative step has made its update next to the state that it found. The update stands, or is
// made once more with the clip factor, or (after an overflow) is dropped.
void Session::settle(StepOutcome& outcome, const runtime::StepScalars& scalars) {
  if (outcome.overflow) return;
  if (runner_.results().clipped) {
    outcome.redone = true;
    runner_.set_scalars(scalars);
    outcome.redo_seconds = pass(schedule::StepKind::kRedo, nullptr).seconds;
  }
  deferred_.flipped = !deferred_.flipped;
  store_.flip();
}

// Runs the drain schedule with the scalars that the pending step left.
double Session::drain() {
  if (!deferred_.pending) return 0;
  runtime::StepScalars scalars;
  scalars.update = *deferred_.pending;
  runner_.set_scalars(scalars);
  const runtime::RunStatistics statistics = pass(schedule::StepKind::kDrain, nullptr);
  deferred_.pending.reset();
  return statistics.seconds;
}

// Evaluation uses the buffers of the rank's first micro-batch.
double Session::evaluate(const FillTokens& fill) {
  drain();
  const std::vector<std::int64_t> read = own_microbatches(schedule::BufferRole::kTokens);
  if (!read.empty()) {
    fill(0, tokens_of(read.front()), tokens_of(read.front()) + batch().rows());
  }
  pass(schedule::StepKind::kEvaluation, nullptr);
  const std::vector<std::int64_t> made = own_microbatches(schedule::BufferRole::kLoss);
  return made.empty() ? 0 : loss_of(made.front()) / static_cast<double>(batch().rows());
}

planner::TierBytes Session::peak_bytes() const {
  planner::TierBytes bytes{};
  for (const Tier tier : kTiers) {
    bytes[static_cast<std::size_t>(tier)] = ledger_.totals(tier).peak_bytes;
  }
  return bytes;
}

planner::TierBytes Session::measured_peak_bytes() const {
  const device::DeviceCounters device = device_->counters();
  return {device.peak_bytes, device.peak_registered_bytes,
          storage_ ? storage_->counters().peak_allocated_bytes : 0};
}

schedule::LinkBytes Session::moved_bytes() const {
  const device::DeviceCounters device = device_->counters();
  const offload::StorageCounters storage =
      storage_ ? storage_->counters() : offload::StorageCounters{};
  return {device.copied_bytes[static_cast<std::size_t>(device::CopyKind::kHostToDevice)],
          device.copied_bytes[static_cast<std::size_t>(device::CopyKind::kDeviceToHost)],
          storage.read_bytes, storage.write_bytes};
}

// A growing number after the first step would break law 9.
std::uint64_t Session::allocation_calls() const {
  const device::DeviceCounters device = device_->counters();
  return device.allocation_calls + device.map_calls + device.registration_calls +
         device.created_events + (storage_ ? storage_->counters().allocated_bytes : 0);
}

}  // namespace sluice::train
