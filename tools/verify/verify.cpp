// Every rank has a backend, a plan and a session of its own, as a process would have. The first
// rank plans, the others compile what it chose (engine/train/world_plan.hpp).
#include "tools/verify/verify.hpp"

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "base/thread.hpp"
#include "collectives/local/local_group.hpp"
#include "engine/checkpoint/rank_path.hpp"
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

// The storage directories of all ranks; those that it makes go with it.
class StorageDirectories {
 public:
  explicit StorageDirectories(const std::vector<train::Prepared>& ranks) {
    for (const train::Prepared& rank : ranks) {
      for (const std::string& path : rank.config.memory.storage_paths) make(path);
    }
  }
  ~StorageDirectories() {
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
    for (std::string& path : prepared.back().config.memory.storage_paths) {
      path = checkpoint::rank_path(path, rank);
    }
  }
  return prepared;
}

train::LrSchedule schedule_of(const config::Config& config) {
  const auto shape = config.optimizer.schedule == config::Config::LrSchedule::kCosine
                         ? train::LrSchedule::Shape::kCosine
                         : train::LrSchedule::Shape::kConstant;
  return {shape, config.optimizer.lr, config.optimizer.warmup, config.train.steps};
}

Figures train_rank(const train::Prepared& rank, const train::RankLinks& links,
                   const data::Dataset& data, std::int64_t steps) {
  train::Session session(rank.config, rank.model, std::get<planner::Plan>(rank.result),
                         rank.backend, {}, make_run_id(), links);
  session.state().initialize(rank.config.train.seed);
  const train::LrSchedule lr = schedule_of(rank.config);
  Figures figures;
  for (std::int64_t step = 0; step < steps; ++step) {
    const train::StepOutcome outcome = session.train_step(
        step, lr.lr_at(step),
        [&](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
          data.fill(step, microbatch, tokens, targets);
        });
    figures.losses.push_back(outcome.loss);
    figures.norms.push_back(outcome.grad_norm);
  }
  figures.weights_hash = session.state().weights_hash();
  return figures;
}

// The figures of the first rank. A rank that fails leaves its groups, which ends the others.
Figures train_together(const std::vector<train::Prepared>& ranks, const data::Dataset& data,
                       std::int64_t steps) {
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
          figures[rank] = train_rank(ranks[rank], links, data, steps);
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

}  // namespace

Outcome run_steps(const config::Config& config, std::int64_t steps) {
  const std::vector<train::Prepared> ranks = prepare_ranks(config);
  const config::Config& settled = ranks.front().config;
  data::Dataset data(data::dataset_options(settled));
  const StorageDirectories directories(ranks);
  if (ranks.size() == 1) return {train_rank(ranks.front(), {}, data, steps), settled};
  return {train_together(ranks, data, steps), settled};
}

}  // namespace sluice::verify
