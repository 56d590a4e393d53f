#include "tools/replay/generated/model_states.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace sluice::replay::generated {

ModelStates::ModelStates(TraceRecorder& recorder, std::vector<std::vector<Parameter>> units,
                         const StateOptions& options)
    : recorder_(recorder), units_(std::move(units)), options_(options) {
  for (const std::vector<Parameter>& unit : units_) states_.emplace_back(unit.size());
}

template <typename F>
void ModelStates::for_each(F&& f) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (std::size_t p = 0; p < units_[unit].size(); ++p) f(units_[unit][p], states_[unit][p]);
  }
}

void ModelStates::allocate_weights() {
  for_each([&](const Parameter& parameter, State&) {
    recorder_.alloc(parameter.elements * options_.weight_bytes, Category::kWeight, parameter.name);
  });
}

void ModelStates::accept(std::size_t unit, std::uint32_t parameter, BufferId gradient) {
  State& state = states_[unit][parameter];
  if (state.gradient == kNoBuffer) {
    state.gradient = gradient;
  } else {
    recorder_.free(gradient);
  }
}

// DDP makes buckets before it knows the order of gradients, and again after the first iteration.
void ModelStates::make_buckets(std::uint64_t first_bytes) {
  for (BufferId& bucket : buckets_) recorder_.free(bucket);
  buckets_.clear();
  std::uint64_t held_bytes = 0;
  std::uint64_t limit_bytes = first_bytes;
  const auto close = [&] {
    if (held_bytes == 0) return;
    const BufferId bucket = recorder_.alloc(std::exchange(held_bytes, 0), Category::kCommunication,
                                            "ddp.bucket", kComputeStream);
    buckets_.push_back(bucket);
    limit_bytes = 25 * kMiB;  // torch's default
  };
  for (std::size_t unit = units_.size(); unit-- > 0;) {
    for (std::size_t p = units_[unit].size(); p-- > 0;) {
      held_bytes += units_[unit][p].elements * options_.gradient_bytes;
      if (held_bytes >= limit_bytes) close();
    }
  }
  close();
}

void ModelStates::optimizer_step(std::uint32_t iteration) {
  if (options_.has_buckets && iteration == 0) make_buckets(25 * kMiB);
  if (options_.has_buckets && iteration == 1) make_buckets(kMiB);
  clip_gradients();
  make_moments();
  update();
  for_each([&](const Parameter&, State& state) { recorder_.free(state.gradient); });
}

// Allocates a norm for each gradient, their stack, its norm, and a factor.
void ModelStates::clip_gradients() {
  std::vector<BufferId> norms;
  for_each([&](const Parameter& parameter, State& state) {
    if (state.gradient == kNoBuffer) return;
    BufferId partials = kNoBuffer;
    if (parameter.elements > 65'536) {
      const std::uint64_t blocks = ceil_div(parameter.elements, 65'536);
      partials = recorder_.alloc(blocks * 4, Category::kWorkspace, "clip.partials");
    }
    norms.push_back(recorder_.alloc(4, Category::kWorkspace, "clip.norm"));
    recorder_.free(partials);
  });
  BufferId stacked = recorder_.alloc(norms.size() * 4, Category::kWorkspace, "clip.stack");
  BufferId total = recorder_.alloc(4, Category::kWorkspace, "clip.total");
  for (BufferId& one : norms) recorder_.free(one);
  recorder_.free(stacked);
  BufferId shifted = recorder_.alloc(4, Category::kWorkspace, "clip.factor");
  BufferId factor = recorder_.alloc(4, Category::kWorkspace, "clip.factor");
  recorder_.free(shifted);
  BufferId clamped = recorder_.alloc(4, Category::kWorkspace, "clip.factor");
  recorder_.free(factor);
  recorder_.free(clamped);
  recorder_.free(total);
}

void ModelStates::make_moments() {
  for_each([&](const Parameter& parameter, State& state) {
    if (state.gradient == kNoBuffer || state.has_moments) return;
    state.has_moments = true;
    const std::uint64_t bytes = ceil_div(parameter.elements, options_.shards) * 4;
    recorder_.alloc(4, Category::kOptimizer, "adam.step");
    if (options_.has_master) recorder_.alloc(bytes, Category::kOptimizer, "adam.master");
    recorder_.alloc(bytes, Category::kOptimizer, "adam.moment1");
    recorder_.alloc(bytes, Category::kOptimizer, "adam.moment2");
  });
}

void ModelStates::update() {
  std::vector<BufferId> temporaries;
  const auto free_all = [&] {
    for (BufferId& one : temporaries) recorder_.free(one);
    temporaries.clear();
  };
  const bool widens = options_.has_master && options_.gradient_bytes < 4;
  const auto make = [&](std::uint64_t elements) {
    return recorder_.alloc(ceil_div(elements, options_.shards) * 4, Category::kOptimizer,
                           "adam.temporary");
  };
  switch (options_.optimizer) {
    case OptimizerKind::kFused:
      recorder_.temporary(4, Category::kOptimizer, "adam.found_inf");
      return;
    case OptimizerKind::kForeach:  // the list of denominators
      for_each([&](const Parameter& parameter, State& state) {
        if (state.gradient == kNoBuffer) return;
        temporaries.push_back(make(parameter.elements));
      });
      free_all();
      return;
    case OptimizerKind::kPerTensor:
      for_each([&](const Parameter& parameter, State& state) {
        if (state.gradient == kNoBuffer) return;
        if (widens) temporaries.push_back(make(parameter.elements));
        temporaries.push_back(make(parameter.elements));
        temporaries.push_back(make(parameter.elements));
        free_all();
      });
      return;
  }
}

}  // namespace sluice::replay::generated
