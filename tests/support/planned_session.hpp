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
inline Backend one_threaded_backend(const Config& given) {
  Config config = given;
  config.memory.backend = Config::Backend::kHost;
  config.train.threads = 1;
  return make_backend(config);
}

class PlannedSession {
 public:
  // change_plan: what the test does to the plan before it is run; may be empty.
  explicit PlannedSession(const Config& config, const std::function<void(Plan&)>& change_plan = {})
      : PlannedSession(config, change_plan, one_threaded_backend(config)) {}
  PlannedSession(const Config& config, const std::function<void(Plan&)>& change_plan,
                 Backend backend)
      : config_(config), model_(model_shape(config)), backend_(std::move(backend)) {
    plan_ = std::get<Plan>(make_plan(config_, model_, *backend_.device_kernels, HardwareProfile{},
                                     backend_.host_kernels.get()));
    if (change_plan) change_plan(plan_);
    for (const std::string& path : config_.memory.storage_paths) {
      std::filesystem::create_directories(path);
    }
    session_ = std::make_unique<Session>(config_, model_, plan_, backend_);
    session_->state().initialize(config_.train.seed);
  }

  const Plan& plan() const { return plan_; }
  Session& session() { return *session_; }
  StepOutcome step(std::int64_t number) { return session_->train_step(number, 1e-2, fill()); }
  double evaluate() { return session_->evaluate(fill()); }
  // The same for every step.
  void fill_tokens(std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) const {
    for (std::int64_t i = 0; i < batch_shape(config_).rows(); ++i) {
      tokens[i] = static_cast<std::int32_t>((i * 7 + microbatch) % config_.model.vocab);
      targets[i] = static_cast<std::int32_t>((i * 7 + 7 + microbatch) % config_.model.vocab);
    }
  }

 private:
  Session::FillTokens fill() const {
    return [this](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
      fill_tokens(microbatch, tokens, targets);
    };
  }

  Config config_;
  Model model_;
  Backend backend_;
  Plan plan_;
  std::unique_ptr<Session> session_;
};

}  // namespace sluice::testing
