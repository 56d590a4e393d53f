// Every rank has a backend, a plan and a session of its own, as a process would have. The first
// rank plans, the others compile what it chose (engine/train/world_plan.hpp).
//
// A durable run commits every second step while it computes. New sessions then load its last commit
// and train the steps after it once more, and their figures replace those of the first sessions.
// So a commit that is wrong shows in a figure. Its log and data lie in directories of their own.
#include "tools/verify/verify.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "base/thread.hpp"
#include "collectives/local/local_group.hpp"
#include "engine/checkpoint/durable_recovery.hpp"
#include "engine/checkpoint/rank_path.hpp"
#include "engine/checkpoint/saved_parts.hpp"
#include "engine/data/dataset.hpp"
#include "engine/data/dataset_options.hpp"
#include "engine/train/lr_schedule.hpp"
#include "engine/train/plan/prepare.hpp"
#include "engine/train/session.hpp"
#include "engine/train/world_checks.hpp"
#include "engine/train/world_plan.hpp"

namespace sluice::verify {
namespace {

namespace fs = std::filesystem;

using Group = std::vector<std::unique_ptr<collectives::Communicator>>;

bool is_durable(const config::Config& config) {
  return config.checkpoint.mode == config::Config::CheckpointMode::kDurable;
}

// Gives a durable run directories of its own, since its files stay when its sessions end. Returns
// them.
std::vector<std::string> take_own_directories(config::Config& config, const RunId& run) {
  std::vector<std::string>& paths = config.memory.storage_paths;
  if (!is_durable(config)) return {};
  for (std::string& path : paths) path = normal_path(path + "/verify-" + run.hex());
  config.checkpoint.dir = paths.front() + "/log";
  return paths;
}

// The directories of all ranks; those that it makes go with it. own: these go with all that they
// hold.
class StorageDirectories {
 public:
  StorageDirectories(const std::vector<train::Prepared>& ranks, std::vector<std::string> own)
      : own_(std::move(own)) {
    for (const train::Prepared& rank : ranks) {
      for (const std::string& path : rank.config.memory.storage_paths) make(path);
      if (is_durable(rank.config)) make(rank.config.checkpoint.dir);
    }
  }
  ~StorageDirectories() {
    for (const std::string& path : own_) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
      std::error_code ignored;  // one that holds something stays
      fs::remove(*path, ignored);
    }
  }
  StorageDirectories(const StorageDirectories&) = delete;
  StorageDirectories& operator=(const StorageDirectories&) = delete;

 private:
  void make(const std::string& path) {
    std::vector<fs::path> missing;
    std::error_code ignored;
    for (fs::path at = normal_path(path); !fs::exists(at, ignored); at = at.parent_path()) {
      missing.push_back(at);
    }
    make_directories(path);
    made_.insert(made_.end(), missing.rbegin(), missing.rend());
  }

  std::vector<std::string> own_;
  std::vector<fs::path> made_;
};

std::vector<train::Prepared> prepare_ranks(const config::Config& config) {
  config::check_supported(config);
  const auto ranks = static_cast<int>(config.parallel.ranks());
  train::check_ranks(config, ranks);
  std::vector<train::Prepared> prepared;
  prepared.push_back(
      train::prepare(config, planner::load_profile_or_default(planner::default_profile_path()),
                     train::PlannedMachine::kThis, ranks));
  if (const planner::Refusal* refusal = prepared.front().refusal()) {
    throw InputError(refusal->sentence());
  }
  const std::string message = train::plan_message(prepared.front());
  for (int rank = 1; rank < ranks; ++rank) {
    prepared.push_back(train::prepare_rank(message, rank));
    config::Config& own = prepared.back().config;
    own.memory.storage_paths = checkpoint::rank_paths(own.memory.storage_paths, rank);
    if (is_durable(own)) own.checkpoint.dir = checkpoint::rank_path(own.checkpoint.dir, rank);
  }
  return prepared;
}

train::LrSchedule schedule_of(const config::Config& config) {
  const auto shape = config.optimizer.schedule == config::Config::LrSchedule::kCosine
                         ? train::LrSchedule::Shape::kCosine
                         : train::LrSchedule::Shape::kConstant;
  return {shape, config.optimizer.lr, config.optimizer.warmup, config.train.steps};
}

// What all ranks of a run share.
struct Training {
  const data::Dataset& data;
  std::int64_t steps = 0;
  RunId id;
  std::optional<checkpoint::DurableFound> found;  // the commit that it goes on from
};

checkpoint::CheckpointManifest manifest_of(const train::Prepared& rank, train::Session& session,
                                           const Training& run, std::int64_t step) {
  checkpoint::CheckpointManifest manifest;
  manifest.step = step;
  manifest.run_id = run.id.hex();
  manifest.settings = config::durable_settings(rank.config);
  manifest.data_fingerprint = run.data.fingerprint();
  manifest.loss_scale = session.loss_scaler().state();
  return manifest;
}

Figures train_rank(const train::Prepared& rank, const train::RankLinks& links,
                   const Training& run) {
  const auto& plan = std::get<planner::Plan>(rank.result);
  train::Session session(rank.config, rank.model, plan, rank.backend, {}, run.id, links);
  std::int64_t first = 0;
  if (run.found) {
    session.load(checkpoint::SavedParts(*run.found, rank.model));
    session.loss_scaler().restore(run.found->manifest.loss_scale.value());
    first = run.found->manifest.step;
  } else {
    session.state().initialize(rank.config.train.seed);
  }
  const train::LrSchedule lr = schedule_of(rank.config);
  const std::int64_t updates = plan.updates();
  const std::int64_t each = plan.options.microbatches;
  Figures figures;
  std::int64_t step = first;
  for (; step < run.steps; step += updates) {
    std::vector<double> lrs;
    for (std::int64_t i = 0; i < updates; ++i) lrs.push_back(lr.lr_at(step + i));
    const bool commits = plan.options.durable && step > first && step % 2 == 1;
    const checkpoint::CheckpointManifest manifest = manifest_of(rank, session, run, step);
    const std::vector<train::StepOutcome> outcomes = session.train_steps(
        step, lrs,
        [&](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
          run.data.fill(step + microbatch / each, microbatch % each, tokens, targets);
        },
        nullptr, commits ? &manifest : nullptr);
    for (const train::StepOutcome& outcome : outcomes) {
      figures.losses.push_back(outcome.loss);
      figures.norms.push_back(outcome.grad_norm);
    }
  }
  // A single step, and the steps after a commit, are committed after the last of them.
  const bool ends_with_commit = plan.options.durable && step > first && (run.found || step == 1);
  if (ends_with_commit) session.commit(manifest_of(rank, session, run, step));
  figures.weights_hash = session.state().weights_hash();
  return figures;
}

// The figures of the first rank. A rank that fails leaves its groups, which ends the others.
Figures train_together(const std::vector<train::Prepared>& ranks, const Training& run) {
  if (ranks.size() == 1) return train_rank(ranks.front(), {}, run);
  const auto count = static_cast<int>(ranks.size());
  Group data_group = collectives::make_local_group(count);
  Group host_group = collectives::make_local_group(count);
  Group stage_group = collectives::make_local_group(count);
  Group inner_group = collectives::make_local_group(count);
  std::vector<Figures> figures(ranks.size());
  std::vector<std::exception_ptr> errors(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.push_back(start_thread("rank", [&, rank] {
        try {
          const train::RankLinks links{data_group[rank].get(), host_group[rank].get(),
                                       stage_group[rank].get(), inner_group[rank].get()};
          figures[rank] = train_rank(ranks[rank], links, run);
        } catch (...) {
          errors[rank] = std::current_exception();
          data_group[rank].reset();
          host_group[rank].reset();
          stage_group[rank].reset();
          inner_group[rank].reset();
        }
      }));
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return figures.front();
}

// Trains the steps after the last commit of a durable run once more.
void train_again(const std::vector<train::Prepared>& ranks, Training run, Figures& figures) {
  const config::Config& config = ranks.front().config;
  std::vector<checkpoint::PassedOver> passed_over;
  run.found = checkpoint::find_durable_of_ranks(config.checkpoint.dir, config.memory.storage_paths,
                                                passed_over);
  if (!run.found) {
    throw Error("the durable run left no commit to go on from" +
                (passed_over.empty() ? std::string() : ": " + passed_over.front().why));
  }
  run.id = make_run_id();
  const Figures again = train_together(ranks, run);
  const auto replace = [](std::vector<double>& all, const std::vector<double>& last) {
    std::copy(last.rbegin(), last.rend(), all.rbegin());
  };
  replace(figures.losses, again.losses);
  replace(figures.norms, again.norms);
  figures.weights_hash = again.weights_hash;
}

}  // namespace

Outcome run_steps(const config::Config& given, std::int64_t steps) {
  config::Config config = given;
  const RunId id = make_run_id();
  const std::vector<std::string> own = take_own_directories(config, id);
  const std::vector<train::Prepared> ranks = prepare_ranks(config);
  const config::Config& settled = ranks.front().config;
  data::Dataset data(data::dataset_options(settled));
  const StorageDirectories directories(ranks, own);
  const Training run{data, steps, id, {}};
  Outcome outcome{train_together(ranks, run), settled};
  if (is_durable(settled)) train_again(ranks, run, outcome.figures);
  return outcome;
}

}  // namespace sluice::verify
