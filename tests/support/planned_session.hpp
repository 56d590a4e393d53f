// A Session of a configuration, with its model, plan and kernels, that takes steps on made-up
// tokens; for tests that need to look inside a run.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

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
  // change_plan: what the test does to the plan before it is run; may be empty.
  explicit PlannedSession(const config::Config& config, const std::function<void(planner::Plan&)>& change_plan = {})
      : PlannedSession(config, change_plan, one_threaded_backend(config)) {}
  PlannedSession(const config::Config& config, const std::function<void(planner::Plan&)>& change_plan,
                 train::Backend backend)
      : config_(config), model_(planner::model_shape(config)), backend_(std::move(backend)) {
    plan_ = std::get<planner::Plan>(planner::make_plan(config_, model_, *backend_.device_kernels, planner::HardwareProfile{},
                                     backend_.host_kernels.get()));
    if (change_plan) change_plan(plan_);
    for (const std::string& path : config_.memory.storage_paths) {
      std::filesystem::create_directories(path);
    }
    session_ = std::make_unique<train::Session>(config_, model_, plan_, backend_);
    session_->state().initialize(config_.train.seed);
  }

  const planner::Plan& plan() const { return plan_; }
  train::Session& session() { return *session_; }
  train::StepOutcome step(std::int64_t number) { return session_->train_step(number, 1e-2, fill()); }
  double evaluate() { return session_->evaluate(fill()); }
  // The same for every step.
  void fill_tokens(std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) const {
    for (std::int64_t i = 0; i < planner::batch_shape(config_).rows(); ++i) {
      tokens[i] = static_cast<std::int32_t>((i * 7 + microbatch) % config_.model.vocab);
      targets[i] = static_cast<std::int32_t>((i * 7 + 7 + microbatch) % config_.model.vocab);
    }
  }

 private:
  train::Session::FillTokens fill() const {
    return [this](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
      fill_tokens(microbatch, tokens, targets);
    };
  }

  config::Config config_;
  model::Model model_;
  train::Backend backend_;
  planner::Plan plan_;
  std::unique_ptr<train::Session> session_;
};

}  // namespace sluice::testing
