// Each division gets its bound first (relaxation.hpp), which takes milliseconds where a plan may
// take seconds. Divisions are planned from the least bound on, and those that cannot beat the best
// plan so far are passed over.
#include "engine/planner/batch_split.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

// Divisions that a configuration may have, from one sample on.
std::vector<std::int64_t> micro_batches(const config::Config& config) {
  std::vector<std::int64_t> list;
  const auto& train = config.train;
  for (std::int64_t size = 1; size <= train.batch; ++size) {
    if (size > 1 && size * train.seq > config::kMostMicroBatchTokens) break;
    const bool divides = train.batch % size == 0;
    const std::int64_t count = train.batch / size;
    if (divides && count % train.fold_groups == 0 && count % config.parallel.data == 0) {
      list.push_back(size);
    }
  }
  return list;
}

config::Config divided(const config::Config& config, std::int64_t micro_batch) {
  config::Config result = config;
  result.train.micro_batch = micro_batch;
  result.train.accumulate = config.train.batch / micro_batch;
  return result;
}

}  // namespace

SplitPlan plan_split(config::Config& config, const model::Model& model,
                     const kernels::Kernels& kernels, const HardwareProfile& hardware,
                     const kernels::Kernels* host_kernels, WorldScope scope) {
  if (config.train.micro_batch != config::Config::kAutoCount) {
    return {make_plan(config, model, kernels, hardware, host_kernels, scope), {}};
  }
  const std::vector<std::int64_t> sizes = micro_batches(config);
  if (sizes.empty()) {
    throw InputError("train.batch is " + std::to_string(config.train.batch) +
                     ", which must be a multiple of train.fold_groups, " +
                     std::to_string(config.train.fold_groups) + ", and of parallel.data, " +
                     std::to_string(config.parallel.data));
  }
  std::vector<TriedSplit> tried;
  for (const std::int64_t size : sizes) {
    tried.push_back({size,
                     least_step_s(divided(config, size), model, kernels, hardware, host_kernels),
                     std::nullopt});
  }
  std::stable_sort(tried.begin(), tried.end(),
                   [](const TriedSplit& a, const TriedSplit& b) { return a.bound_s < b.bound_s; });
  std::optional<Plan> best;
  std::int64_t best_size = sizes.front();
  for (TriedSplit& split : tried) {
    if (best && split.bound_s >= best->step_s()) continue;
    try {
      auto result = make_plan(divided(config, split.micro_batch), model, kernels, hardware,
                              host_kernels, scope);
      auto* plan = std::get_if<Plan>(&result);
      if (plan == nullptr) continue;
      split.step_s = plan->step_s();
      if (best && *split.step_s >= best->step_s()) continue;
      best_size = split.micro_batch;
      best = std::move(*plan);
    } catch (const InputError&) {  // a step that is too long to plan
    }
  }
  config = divided(config, best_size);
  if (best) return {std::move(*best), std::move(tried)};
  // The reason, be it a refusal or bad input.
  return {make_plan(config, model, kernels, hardware, host_kernels, scope), std::move(tried)};
}

}  // namespace sluice::planner
