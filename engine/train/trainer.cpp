#include "engine/train/trainer.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "engine/checkpoint/huggingface_export.hpp"
#include "engine/checkpoint/rank_path.hpp"
#include "engine/train/plan/model_flops.hpp"
#include "engine/train/world_events.hpp"

namespace sluice::train {
namespace {

LrSchedule lr_schedule(const config::Config& config) {
  const auto shape = config.optimizer.schedule == config::Config::LrSchedule::kCosine
                         ? LrSchedule::Shape::kCosine
                         : LrSchedule::Shape::kConstant;
  return {shape, config.optimizer.lr, config.optimizer.warmup, config.train.steps};
}

// The training data cannot be read: a fault outside the state.
class DataError : public Error {
 public:
  using Error::Error;
};

// A rank cannot write its files, and all ranks know.
class StopAgreed : public Error {
 public:
  using Error::Error;
};

template <typename Read>
void read_data(Read read) {
  try {
    read();
  } catch (const IoError& error) {
    throw DataError(std::string("the data cannot be read: ") + error.what());
  }
}

}  // namespace

Trainer::Trainer(const TrainingContext& context)
    : context_(context),
      arithmetic_(context.backend.device_kernels->arithmetic()),
      rate_{.flops_per_token = flops_per_token(context.model.shape(), context.config.train.seq)},
      data_fingerprint_(context.data.fingerprint()),
      session_(context.config, context.model, context.plan, context.backend,
               context.options.wrap_storage, context.run_id,
               {context.world.data(), context.world.host(), context.world.messages(),
                context.world.inner()}),
      lr_(lr_schedule(context.config)) {}

void Trainer::start(const std::optional<run::ResumePoint>& found) {
  if (found) {
    if (found->durable) {
      session_.load(checkpoint::SavedParts(*found->durable, context_.model));
    } else {
      checkpoint::load_checkpoint(*found->checkpoint, session_.state());
    }
    passed_over_logs_ = found->passed_over_logs;
    const checkpoint::CheckpointManifest& manifest = found->manifest();
    step_ = manifest.step;
    if (manifest.loss_scale) session_.loss_scaler().restore(*manifest.loss_scale);
    session_.count_use(planner::Verb::kResume);
    emit({{"event", "resume"}, {"step", step_}, {"dir", found->where()}});
  } else {
    session_.state().initialize(context_.config.train.seed);
    session_.count_use(planner::Verb::kLoad);
  }
  first_step_ = step_;
  // The initial state is worth a checkpoint if the run ends with it (--steps 0).
  saved_step_ = found || durable() ? step_ : -1;
}

// A step reads its data before it changes anything, and writes files of the run after it has
// finished. So if either fails, the state is that of step_.
TrainingEnd Trainer::run() {
  if (!context_.world.alone()) return run_among_ranks();
  try {
    return run_steps();
  } catch (const run::RunFileError& error) {
    save_and_stop(error.what());
  } catch (const DataError& error) {
    save_and_stop(error.what());
  }
}

// The cause is found before this rank frees its memory, which may take longer than the others wait.
TrainingEnd Trainer::run_among_ranks() {
  try {
    try {
      return run_steps();
    } catch (const StopAgreed& fault) {
      save_and_stop(fault.what());
    }
  } catch (const JobError&) {
    throw;
  } catch (const std::exception& error) {
    throw context_.world.explain(error, " after step " + std::to_string(step_));
  }
}

void Trainer::save_and_stop(const std::string& why) {
  try {
    if (saved_step_ != step_) save();
  } catch (const Error& error) {
    // The failure of the log is known already; any other one prevents saving the state.
    if (saved_step_ != step_) {
      throw Error(why + "; nor can step " + std::to_string(step_) + " be saved: " + error.what());
    }
  }
  if (step_ == 0) throw Error(why + "; no step was trained");
  throw Error(why + "; step " + std::to_string(step_) + " is saved in " +
              context_.config.checkpoint.dir);
}

TrainingEnd Trainer::run_steps() {
  const std::int64_t last = context_.options.stop_at_step.value_or(context_.config.train.steps);
  while (step_ < last) {
    next_steps(last);
    const bool stop = stop_asked();
    const bool due =
        context_.config.checkpoint.every > 0 && step_ % context_.config.checkpoint.every == 0;
    const bool overflows = session_.loss_scaler().exhausted();
    const bool goes_on = step_ < last && !stop && !overflows;
    if (due && goes_on && durable()) {
      commits_next_ = true;  // while the next step computes
    } else if (stop || due || overflows) {
      save();
    }
    if (overflows) stop_overflowing();
    if (stop && step_ < last) {
      agree_on_files();
      return TrainingEnd::kInterrupted;
    }
  }
  finish();
  agree_on_files();
  return TrainingEnd::kDone;
}

bool Trainer::stop_asked() {
  const int signal =
      context_.options.stop_signal == nullptr ? 0 : context_.options.stop_signal->load();
  if (context_.world.alone()) return signal != 0;
  const World::StopVote vote = context_.world.vote_on_stop({signal, faults_.unreported});
  if (!vote.fault.empty()) throw StopAgreed(vote.fault);
  return vote.signal != 0;
}

void Trainer::agree_on_files() {
  if (context_.world.alone()) return;
  const World::StopVote vote = context_.world.vote_on_stop({0, faults_.unreported});
  if (!vote.fault.empty()) throw StopAgreed(vote.fault);
}

void Trainer::write_files(const std::function<void()>& write) {
  if (context_.world.alone()) return write();
  try {
    write();
  } catch (const run::RunFileError& error) {
    if (faults_.unreported.empty()) faults_.unreported = error.what();
  }
}

void Trainer::emit(const RunEvent& event) {
  std::exception_ptr fault;
  try {
    if (!faults_.of_events) context_.files.event(event);
  } catch (const run::RunFileError&) {
    faults_.of_events = true;
    fault = std::current_exception();
  }
  if (context_.world.is_first()) context_.events(event);
  if (!fault) return;
  write_files([&] { std::rethrow_exception(fault); });
}

void Trainer::next_steps(std::int64_t last) {
  const std::int64_t updates = context_.plan.updates();
  // The third schedule is steady; a shorter run is traced at its last.
  const bool traced =
      step_ - first_step_ == std::min<std::int64_t>(2 * updates, last - first_step_ - updates);
  TraceRecorder trace;
  std::vector<double> lrs;
  for (std::int64_t i = 0; i < updates; ++i) lrs.push_back(lr_.lr_at(step_ + i));
  const bool commits = std::exchange(commits_next_, false);
  const checkpoint::CheckpointManifest found = manifest();
  const std::int64_t each = context_.plan.options.microbatches;
  const std::vector<StepOutcome> outcomes = session_.train_steps(
      step_, lrs,
      [&](std::int64_t mb, std::int32_t* tokens, std::int32_t* targets) {
        read_data([&] { context_.data.fill(step_ + mb / each, mb % each, tokens, targets); });
      },
      traced ? &trace : nullptr, commits ? &found : nullptr);
  if (commits) note_saved(step_);
  if (traced) write_files([&] { context_.files.text("trace.json", trace.to_json()); });
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    ++step_;
    count(outcomes[i]);
    report(outcomes[i], lrs[i], last, commits);
  }
  const bool evaluates =
      context_.config.train.eval_every > 0 && step_ % context_.config.train.eval_every == 0;
  if (evaluates && context_.data.eval_batches() > 0) evaluate();
}

void Trainer::count(const StepOutcome& outcome) {
  total_.moved += outcome.moved;
  total_.step_s += outcome.seconds;
  total_.redone_steps += outcome.redone ? 1 : 0;
  total_.redo_s += outcome.redo_seconds;
}

void Trainer::count_between_steps(const schedule::LinkBytes& moved) {
  total_.moved += moved;
  total_.between_steps += moved;
}

void Trainer::note_overflow(const StepOutcome& outcome) {
  overflow_.tensor = outcome.overflowed_tensor;
  overflow_.scale = outcome.loss_scale;
  if (!context_.world.is_first()) return;
  log(LogLevel::kWarning, "step " + std::to_string(step_) + ": the gradient of '" +
                              overflow_.tensor + "' overflowed fp16 at loss scale " +
                              scale_text(outcome.loss_scale) +
                              "; the update is skipped, the scale is now " +
                              scale_text(session_.loss_scaler().scale()));
}

void Trainer::stop_overflowing() {
  throw Error("training stopped at step " + std::to_string(step_) + ": gradients overflowed " +
              "fp16 in " + std::to_string(session_.loss_scaler().state().overflows) +
              " steps in a row, the last time that of '" + overflow_.tensor + "' at loss scale " +
              scale_text(overflow_.scale) +
              "; begin anew with a lower optimizer.lr or train.loss_scale, or with "
              "train.precision = \"bf16\"");
}

std::string Trainer::scale_text(double scale) {
  return std::to_string(static_cast<std::int64_t>(scale));
}

void Trainer::report(const StepOutcome& outcome, double lr, std::int64_t last, bool commits) {
  StepReport report;
  report.step = step_;
  report.last_step = last;
  report.loss = outcome.loss;
  report.grad_norm = outcome.grad_norm;
  report.lr = lr;
  report.step_time_s = outcome.seconds;
  report.tokens_per_s =
      static_cast<double>(context_.config.train.seq * context_.config.train.micro_batch *
                          context_.config.train.accumulate) /
      outcome.seconds;
  report.stalled_fraction = outcome.stalled_fraction;
  if (rate_.peak_flops)
    report.mfu = rate_.flops_per_token * report.tokens_per_s / *rate_.peak_flops;
  report.moved = outcome.moved;
  report.overflow = outcome.overflow;
  const bool logged = context_.config.log.every > 0 && (step_ % context_.config.log.every == 0 ||
                                                        step_ == last || step_ == first_step_ + 1);
  // The traced step's event is always there: the report shows its stalls next to the trace.
  if (logged || report.overflow || outcome.stalls) {
    RunEvent event{{"event", "step"},
                   {"step", report.step},
                   {"loss", report.loss},
                   {"grad_norm", report.grad_norm},
                   {"lr", report.lr},
                   {"tokens_per_s", report.tokens_per_s},
                   {"mfu", report.mfu ? RunEvent(*report.mfu) : RunEvent(nullptr)},
                   {"step_time_s", report.step_time_s},
                   {"stalled_fraction", report.stalled_fraction},
                   {"tag_time_s", outcome.tag_seconds},
                   {"bytes_moved", link_bytes_json(report.moved)}};
    if (context_.plan.speculates()) {
      event["redone"] = outcome.redone;
      event["redo_time_s"] = outcome.redo_seconds;
    }
    if (!context_.world.alone()) {
      event["ranks"] = context_.world.size();
      add_messages(event["bytes_moved"], message_counts(outcome.messages, outcome.stage_messages,
                                                        outcome.inner_messages));
    }
    if (durable()) event["commits"] = commits;
    if (outcome.stalls) {
      event["stalls"] = stalls_json(*outcome.stalls);
      event["measured_peak_bytes"] = tier_bytes_json(session_.measured_peak_bytes());
    }
    if (scales_loss()) {
      event["loss_scale"] = static_cast<std::int64_t>(outcome.loss_scale);
      event["overflow"] = outcome.overflow;
      if (outcome.overflow) event["tensor"] = outcome.overflowed_tensor;
    }
    emit(event);
  }
  if (outcome.overflow) note_overflow(outcome);
  if (context_.world.is_first()) context_.observe(report);
}

MessageCounts Trainer::message_counts(const collectives::ByteCounts& data,
                                      const collectives::ByteCounts& stages,
                                      const collectives::ByteCounts& inner) const {
  return {data, context_.plan.pipeline.is_alone() ? std::nullopt : std::optional(stages),
          context_.plan.view.tensor.is_alone() ? std::nullopt : std::optional(inner),
          context_.plan.inner_name()};
}

void Trainer::evaluate() {
  const schedule::LinkBytes before = session_.moved_bytes();
  double sum = 0;
  const std::int64_t batches = context_.data.eval_batches();
  std::int64_t done = 0;
  while (done < batches && !stop_asked()) {
    for (const double loss : evaluate_round(done, batches)) {
      sum += loss;
      ++done;
    }
  }
  count_between_steps(session_.moved_bytes() - before);
  if (done < batches) return;  // asked to stop: a part of the data is no evaluation
  emit({{"event", "eval"}, {"step", step_}, {"loss", sum / static_cast<double>(batches)}});
}

// Ranks without a batch compute the last one, because every rank has a part in the gathers. In a
// pipeline the ranks of one data-parallel rank compute one batch together.
std::vector<double> Trainer::evaluate_round(std::int64_t first, std::int64_t batches) {
  const std::int64_t ranks = context_.plan.view.ranks;
  const std::int64_t own = std::min(first + context_.plan.view.rank, batches - 1);
  const double loss =
      session_.evaluate([&](std::int64_t, std::int32_t* tokens, std::int32_t* targets) {
        read_data([&] { context_.data.fill_eval(own, tokens, targets); });
      });
  std::vector<double> all(static_cast<std::size_t>(context_.world.size()));
  try {
    session_.communicator().all_gather(&loss, all.data(), 1, DType::kF64);
  } catch (const collectives::CommunicationError& error) {
    throw error.in("the exchange of an evaluation's losses");
  }
  std::vector<double> losses;
  for (std::int64_t rank = 0; rank < std::min(ranks, batches - first); ++rank) {
    const std::int64_t of_group = rank * context_.plan.view.tensor.ranks;
    losses.push_back(all.at(session_.first_head_rank() + static_cast<std::size_t>(of_group)));
  }
  return losses;
}

void Trainer::drain() {
  const schedule::LinkBytes before = session_.moved_bytes();
  session_.drain();
  count_between_steps(session_.moved_bytes() - before);
}

checkpoint::CheckpointManifest Trainer::manifest() {
  checkpoint::CheckpointManifest manifest;
  manifest.step = step_;
  manifest.run_id = context_.run_id.hex();
  manifest.settings = durable() ? config::durable_settings(context_.config)
                                : config::result_settings(context_.config);
  manifest.data_fingerprint = data_fingerprint_;
  manifest.arithmetic = arithmetic_;
  manifest.threads = context_.config.train.threads;
  if (scales_loss()) manifest.loss_scale = session_.loss_scaler().state();
  return manifest;
}

void Trainer::save() {
  context_.files.check_in_place();
  if (durable()) {
    count_between_steps(session_.commit(manifest()));
  } else {
    drain();
    checkpoint::save_checkpoint(context_.config.checkpoint.dir, manifest(), session_.state());
    session_.count_use(planner::Verb::kSave);
  }
  // The first rank hashes and syncs its file alone, perhaps for longer than a data call waits.
  context_.world.gather("the save", {});
  note_saved(step_);
}

void Trainer::note_saved(std::int64_t step) {
  saved_step_ = step;
  retire_earlier();
  emit({{"event", "checkpoint"}, {"step", step}, {"dir", context_.config.checkpoint.dir}});
}

void Trainer::retire_earlier() {
  if (std::exchange(retired_, true)) return;
  const std::string& directory = context_.config.checkpoint.dir;
  if (durable() || context_.world.is_first()) {
    checkpoint::retire_other_logs(directory, session_.state_log(), context_.files.storage_paths(),
                                  passed_over_logs_);
  }
  if (!context_.world.is_first()) return;
  // The run may have had more ranks before. Where this one saves files, it retires those of all.
  std::error_code ignored;
  for (int rank = durable() ? context_.world.size() : 1;
       std::filesystem::is_directory(checkpoint::rank_path(directory, rank), ignored); ++rank) {
    checkpoint::retire_other_logs(checkpoint::rank_path(directory, rank), "",
                                  checkpoint::rank_paths(context_.files.storage_paths(), rank),
                                  passed_over_logs_);
  }
}

void Trainer::finish() {
  if (context_.config.checkpoint.final && saved_step_ != step_) save();
  drain();
  const std::string huggingface =
      context_.config.checkpoint.final ? export_results() : std::string();
  context_.world.gather("the export", {});  // the first rank writes most of it alone
  const std::string hash = session_.state().weights_hash();
  session_.count_use(planner::Verb::kExport);
  RunEvent done{{"event", "done"},
                {"steps", step_},
                {"weights_hash", hash},
                {"peak_bytes", tier_bytes_json(session_.peak_bytes())},
                {"measured_peak_bytes", tier_bytes_json(session_.measured_peak_bytes())},
                {"peak_bytes_by_verb", verb_bytes_json(session_.peak_bytes_by_verb())},
                {"bytes_moved", link_bytes_json(total_.moved)},
                {"bytes_moved_between_steps", link_bytes_json(total_.between_steps)},
                {"storage_engine", session_.storage_engine_name()},
                {"storage_tags", tags_json()},
                {"arithmetic", arithmetic_}};
  if (context_.plan.speculates()) {
    done["speculation"] = {{"steps", step_ - first_step_},
                           {"redone_steps", total_.redone_steps},
                           {"redo_time_s", total_.redo_s}};
  }
  if (!huggingface.empty()) done["huggingface"] = huggingface;
  if (!context_.world.alone()) {
    add_messages(done["bytes_moved"],
                 message_counts(session_.message_bytes(), session_.stage_message_bytes(),
                                session_.inner_message_bytes()));
    add_ranks_to_done(done, context_.world,
                      {{"rank", context_.world.rank()},
                       {"peak_bytes", done["peak_bytes"]},
                       {"bytes_moved", done["bytes_moved"]},
                       {"step_time_s", total_.step_s}});
  }
  emit(done);
}

std::string Trainer::export_results() {
  context_.files.check_in_place();
  const std::string weights = context_.files.path("weights.safetensors");
  try {
    session_.state().export_weights(weights);
  } catch (const IoError& error) {
    throw run::RunFileError(std::string("the weights cannot be written: ") + error.what());
  }
  if (!context_.world.is_first()) return "";
  std::string directory = context_.files.path("huggingface");
  const std::string obstacle = checkpoint::huggingface_obstacle(context_.model.shape());
  if (!obstacle.empty()) {
    log(LogLevel::kInfo, "'" + directory + "' is not written: " + obstacle);
    return "";
  }
  try {
    checkpoint::export_huggingface(checkpoint::SafetensorsReader(weights), context_.model.shape(),
                                   session_.parameters().options().weight, directory,
                                   session_.export_piece());
  } catch (const IoError& error) {
    throw run::RunFileError("'" + directory + "' cannot be written: " + error.what());
  }
  return directory;
}

RunEvent Trainer::tags_json() {
  const offload::TagCounters tags = session_.tag_counters();
  return {{"hashed_bytes", tags.hashed_bytes},
          {"hash_time_s", tags.hash_seconds},
          {"reread_blocks", tags.reread_blocks}};
}

}  // namespace sluice::train
