// A Session of a configuration, with its model, plan and kernels, that takes steps on made-up
// tokens; for tests that need to look inside a run.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "engine/config/shapes.hpp"
#include "engine/train/plan/prepare.hpp"
#include "engine/train/session.hpp"

namespace sluice::testing {

// The host's, with one thread.
inline train::Backend one_threaded_backend(const config::Config& given) {
  config::Config config = given;
  config.memory.backend = config::Config::Backend::kHost;
  config.train.threads = 1;
  return train::make_backend(config);
}

class PlannedSession {
 public:
  // change_plan: the test's changes to the plan before it is run; may be empty.
  explicit PlannedSession(const config::Config& config,
                          const std::function<void(planner::Plan&)>& change_plan = {})
      : PlannedSession(config, change_plan, one_threaded_backend(config)) {}
  PlannedSession(const config::Config& config,
                 const std::function<void(planner::Plan&)>& change_plan, train::Backend backend)
      : prepared_(train::prepare_with(config, planner::HardwareProfile{}, std::move(backend))) {
    if (prepared_.refusal() != nullptr) throw InputError(prepared_.refusal()->sentence());
    planner::Plan& plan = *prepared_.plan();
    if (change_plan) change_plan(plan);
    for (const std::string& path : config.memory.storage_paths) {
      std::filesystem::create_directories(path);
    }
    session_ = std::make_unique<train::Session>(prepared_.config, prepared_.model, plan,
                                                prepared_.backend);
    session_->state().initialize(config.train.seed);
  }

  const planner::Plan& plan() const { return std::get<planner::Plan>(prepared_.result); }
  train::Session& session() { return *session_; }
  train::StepOutcome step(std::int64_t number) {
    return session_->train_step(number, 1e-2, fill());
  }
  double evaluate() { return session_->evaluate(fill()); }
  // Fills in the tokens of every step alike.
  void fill_tokens(std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) const {
    for (std::int64_t i = 0; i < config::batch_shape(prepared_.config).rows(); ++i) {
      tokens[i] = static_cast<std::int32_t>((i * 7 + microbatch) % prepared_.config.model.vocab);
      targets[i] =
          static_cast<std::int32_t>((i * 7 + 7 + microbatch) % prepared_.config.model.vocab);
    }
  }

 private:
  train::Session::FillTokens fill() const {
    return [this](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
      fill_tokens(microbatch, tokens, targets);
    };
  }

  train::Prepared prepared_;
  std::unique_ptr<train::Session> session_;
};

}  // namespace sluice::testing
