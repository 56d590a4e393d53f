// Sessions of several ranks, each on a thread of its own, that train the same model.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/local/local_group.hpp"
#include "engine/checkpoint/rank_path.hpp"
#include "engine/planner/plan.hpp"
#include "engine/train/session.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/rank_world.hpp"
#include "tests/support/whole_world.hpp"

namespace sluice::testing {

// Doubles as their bits.
struct RanksRecord {
  std::vector<std::uint64_t> losses, norms;
  std::uint64_t redone_steps = 0;
  std::string weights_hash;
  bool operator==(const RanksRecord&) const = default;
};

inline std::int32_t token_of(std::int64_t step, std::int64_t microbatch, std::int64_t row,
                             std::int64_t vocab) {
  return static_cast<std::int32_t>((row * 7 + microbatch * 13 + step * 5) % vocab);
}

// Each of several steps in one schedule has another rate.
inline double learning_rate(std::int64_t step, std::int64_t updates) {
  return updates > 1 ? 1e-2 / static_cast<double>(1 + step) : 1e-2;
}

// Trains `steps` steps. fails: the data of the second one cannot be read. moved: gets the bytes
// that the links moved meanwhile. after_pass: called after each pass with its first step; may be
// empty.
inline RanksRecord train_session(train::Session& session, const config::Config& config,
                                 std::int64_t steps, bool fails = false,
                                 schedule::LinkBytes* moved = nullptr,
                                 const std::function<void(std::int64_t step)>& after_pass = {}) {
  session.state().initialize(config.train.seed);
  RanksRecord record;
  const std::int64_t updates = std::max<std::int64_t>(config.parallel.updates, 1);
  for (std::int64_t step = 0; step < steps; step += updates) {
    std::vector<double> lrs;
    for (std::int64_t i = 0; i < updates; ++i) lrs.push_back(learning_rate(step + i, updates));
    const std::vector<train::StepOutcome> outcomes = session.train_steps(
        step, lrs, [&](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
          if (fails && step == 1) throw Error("the data cannot be read");
          const std::int64_t own_step = step + microbatch / config.train.accumulate;
          const std::int64_t own = microbatch % config.train.accumulate;
          for (std::int64_t i = 0; i < config::batch_shape(config).rows(); ++i) {
            tokens[i] = token_of(own_step, own, i, config.model.vocab);
            targets[i] = token_of(own_step, own, i + 1, config.model.vocab);
          }
        });
    for (const train::StepOutcome& outcome : outcomes) {
      record.losses.push_back(std::bit_cast<std::uint64_t>(outcome.loss));
      record.norms.push_back(std::bit_cast<std::uint64_t>(outcome.grad_norm));
      record.redone_steps += outcome.redone ? 1 : 0;
      if (moved != nullptr) *moved += outcome.moved;
    }
    if (after_pass) after_pass(step);
  }
  record.weights_hash = session.state().weights_hash();
  return record;
}

struct RanksRun {
  std::vector<RanksRecord> ranks;
  std::vector<std::uint64_t> sent_bytes;     // by rank, as its communicators counted
  std::vector<std::uint64_t> planned_bytes;  // by rank, of the same steps
  std::vector<std::uint64_t> host_bytes;     // by rank: sent by the host's group of collectives
  std::vector<schedule::LinkBytes> moved;    // by rank
};

// Where the sessions run; by default on the host.
struct RankDevices {
  std::function<train::Backend(const config::Config& config)> make_backend = one_threaded_backend;
  // The group of GPUs that a rank joins; empty: none does. host: the host's group of collectives.
  std::function<train::Session::MakeGpuGroup(int rank, collectives::Communicator& host)> gpu_group;
};

// Called on the thread of a rank that fails, while the others still run.
using RankFailure = std::function<void(int rank, const std::exception& error)>;

// Called on the thread of each rank after its last step.
using RankEnd = std::function<void(train::Session& session)>;

// The session of a rank, and the step that it has made.
struct RankStep {
  int rank = 0;
  std::int64_t step = 0;
  const model::Model& model;
  const planner::Plan& plan;
  train::Session& session;
};
// Called on the thread of each rank after each of its steps.
using AfterStep = std::function<void(const RankStep& at)>;

// The configuration of a rank. Each has storage of its own, since files are named by the run, and
// in a durable run a directory of checkpoints.
inline config::Config config_of_rank(config::Config config, int rank) {
  config.memory.storage_paths = checkpoint::rank_paths(config.memory.storage_paths, rank);
  if (config.checkpoint.mode == config::Config::CheckpointMode::kDurable) {
    config.checkpoint.dir = checkpoint::rank_path(config.checkpoint.dir, rank);
    std::filesystem::create_directories(config.checkpoint.dir);
  }
  for (const std::string& path : config.memory.storage_paths) {
    std::filesystem::create_directories(path);
  }
  return config;
}

// The bytes that the plan's schedules send in so many steps.
inline std::uint64_t planned_bytes(const planner::Plan& plan, std::int64_t steps,
                                   std::uint64_t redone_steps) {
  using schedule::StepKind;
  const auto sent = [&](StepKind kind) {
    std::uint64_t bytes = 0;
    for (const auto& lane : schedule::message_bytes(plan.schedules[kind], 0)) bytes += lane.sent;
    return bytes;
  };
  const auto count = static_cast<std::uint64_t>(steps / plan.updates());
  const std::uint64_t planned =
      plan.carries_updates() ? sent(StepKind::kFirst) + (count - 1) * sent(StepKind::kTraining) +
                                   sent(StepKind::kDrain)
                             : count * sent(StepKind::kTraining);
  return planned + redone_steps * sent(StepKind::kRedo);
}

// options: of one rank alone, and the stages of a pipeline; the placement is changed as the ZeRO
// stage asks. config.parallel says how many ranks there are. failing_rank: its data cannot be read
// in the second step; -1: none. A session on a GPU takes exactly the memory that its plan states.
inline RanksRun train_on_ranks(const config::Config& config, schedule::StepOptions options,
                               std::int64_t steps, const RankFailure& failure = {},
                               int failing_rank = -1, const RankDevices& devices = {},
                               const RankEnd& at_end = {}, const AfterStep& after_step = {}) {
  const auto ranks = static_cast<int>(config.parallel.ranks());
  const std::int32_t stage =
      config.parallel.server ? kServerStage : static_cast<std::int32_t>(config.parallel.zero);
  if (config.parallel.data > 1) place_for_stage(options.placement, stage);
  auto data = collectives::make_local_group(ranks, 60);
  auto control = collectives::make_local_group(ranks, 60);
  auto messages = collectives::make_local_group(ranks, 60);
  auto inner = collectives::make_local_group(ranks, 60);
  std::vector<model::Model> models;
  std::vector<train::Backend> backends;
  std::vector<planner::Plan> plans;
  for (int rank = 0; rank < ranks; ++rank) {
    backends.push_back(devices.make_backend(config));
    models.emplace_back(config::model_shape(config), config::tensor_share(config, rank));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const train::Backend& backend = backends[static_cast<std::size_t>(rank)];
    plans.push_back(planner::plan_rank(config, models[static_cast<std::size_t>(rank)],
                                       *backend.device_kernels, {}, options, rank,
                                       backend.host_kernels.get()));
  }
  expect_world_holds(plans, config);
  std::vector<config::Config> configs;
  for (int rank = 0; rank < ranks; ++rank) configs.push_back(config_of_rank(config, rank));
  const RunId id = make_run_id();
  RanksRun run;
  run.ranks.resize(plans.size());
  run.sent_bytes.resize(plans.size());
  run.planned_bytes.resize(plans.size());
  run.host_bytes.resize(plans.size());
  run.moved.resize(plans.size());
  run_in_threads(ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    try {
      train::Session session(
          configs[at], models[at], plans[at], backends[at], {}, id,
          {data[at].get(), control[at].get(), messages[at].get(), inner[at].get()});
      if (devices.gpu_group) session.connect_gpus(devices.gpu_group(rank, *data[at]));
      run.ranks[at] = train_session(session, config, steps, rank == failing_rank, &run.moved[at],
                                    [&](std::int64_t step) {
                                      if (after_step)
                                        after_step({rank, step, models[at], plans[at], session});
                                    });
      run.sent_bytes[at] = session.message_bytes().sent + session.stage_message_bytes().sent +
                           session.inner_message_bytes().sent;
      if (backends[at].name == "cuda") {
        EXPECT_EQ(session.peak_bytes(), plans[at].peak_bytes);
        EXPECT_EQ(session.measured_peak_bytes(), plans[at].peak_bytes);
      }
      if (at_end) at_end(session);
    } catch (const std::exception& error) {
      if (failure) failure(rank, error);
      // As when a process ends: the others find this rank gone.
      data[at].reset();
      control[at].reset();
      messages[at].reset();
      inner[at].reset();
      throw;
    }
    run.host_bytes[at] = data[at]->bytes().sent;
    run.planned_bytes[at] = planned_bytes(plans[at], steps, run.ranks[at].redone_steps);
  });
  return run;
}

}  // namespace sluice::testing
