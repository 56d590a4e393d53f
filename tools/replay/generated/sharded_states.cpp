#include "tools/replay/generated/sharded_states.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace sluice::replay::generated {

ShardedStates::ShardedStates(TraceRecorder& recorder, std::vector<std::vector<Parameter>> units,
                             const ShardOptions& options)
    : recorder_(recorder), options_(options) {
  for (std::vector<Parameter>& parameters : units) {
    Unit unit;
    unit.elements = element_count(parameters);
    unit.parameters = std::move(parameters);
    units_.push_back(std::move(unit));
  }
}

std::uint64_t ShardedStates::shard_elements(const Unit& unit) const {
  return ceil_div(unit.elements, options_.ranks);
}

void ShardedStates::allocate_weights() {
  for (const Unit& unit : units_) {
    recorder_.alloc(shard_elements(unit) * options_.element_bytes, Category::kWeight, "shard");
  }
}

void ShardedStates::gather(Unit& unit) {
  if (!unit.gathered.empty()) return;
  const auto allocate = [&](std::uint64_t elements, const std::string& name) {
    const std::uint64_t padded = round_up(elements, options_.ranks);
    const BufferId id = recorder_.alloc(padded * options_.element_bytes, Category::kWeight, name,
                                        kCommunicationStream);
    recorder_.record_stream(id, options_.completion_delay);
    unit.gathered.push_back(id);
  };
  if (!options_.gathers_parameters) {
    allocate(unit.elements, "gather.unit");
    return;
  }
  for (const Parameter& parameter : unit.parameters) {
    allocate(parameter.elements, "gather." + parameter.name);
  }
}

void ShardedStates::reshard(Unit& unit) {
  for (BufferId& id : unit.gathered) recorder_.free(id);
  unit.gathered.clear();
}

void ShardedStates::before_forward(std::size_t unit) {
  const std::size_t last = std::min(units_.size() - 1, unit + options_.prefetch_units);
  for (std::size_t next = unit; next <= last; ++next) gather(units_[next]);
}

void ShardedStates::after_forward(std::size_t unit) {
  // Backward uses the last unit again at once.
  if (unit + 1 < units_.size()) reshard(units_[unit]);
}

void ShardedStates::before_backward(std::size_t unit) {
  gather(units_[unit]);
  for (std::uint64_t ahead = 1; ahead <= std::min<std::uint64_t>(options_.prefetch_units, unit);
       ++ahead) {
    gather(units_[unit - ahead]);
  }
}

void ShardedStates::after_backward(std::size_t unit) {
  reshard(units_[unit]);
  if (options_.bucket_elements == 0) reduce_unit(units_[unit]);
  if (unit == 0 && bucket_used_elements_ > 0) reduce_bucket();
}

void ShardedStates::accept(std::size_t unit, std::uint32_t parameter, BufferId gradient) {
  if (options_.bucket_elements == 0) {
    units_[unit].gradients.push_back(gradient);
    return;
  }
  const std::uint64_t elements = units_[unit].parameters[parameter].elements;
  if (bucket_ == kNoBuffer) {
    bucket_ = recorder_.alloc(options_.bucket_elements * options_.element_bytes,
                              Category::kCommunication, "reduce.bucket");
  }
  if (bucket_used_elements_ + elements > options_.bucket_elements) reduce_bucket();
  if (elements > options_.bucket_elements) {  // goes alone, from where it is
    bucket_used_elements_ = elements;
    reduce_bucket();
  } else {
    bucket_used_elements_ += elements;
  }
  recorder_.free(gradient);
}

// Keeps this rank's part of the reduced gradient, or copies it to the host.
void ShardedStates::keep_shard(BufferId& kept, std::uint64_t elements) {
  BufferId shard = recorder_.alloc(elements * options_.element_bytes, Category::kGradient,
                                   "reduce.shard", kCommunicationStream);
  recorder_.record_stream(shard, options_.completion_delay);
  if (options_.offloads_optimizer || kept != kNoBuffer) {
    recorder_.free(shard);
  } else {
    kept = shard;
  }
}

void ShardedStates::reduce_unit(Unit& unit) {
  BufferId flat = recorder_.alloc(round_up(unit.elements, options_.ranks) * options_.element_bytes,
                                  Category::kCommunication, "reduce.flat");
  recorder_.record_stream(flat, options_.completion_delay);
  for (BufferId& one : unit.gradients) recorder_.free(one);
  unit.gradients.clear();
  keep_shard(unit.gradient_shard, shard_elements(unit));
  recorder_.free(flat);
}

void ShardedStates::reduce_bucket() {
  // Shards of a bucket are parts of parameters; DeepSpeed copies each to its partition at once, so
  // that none is kept under this name.
  BufferId shard = recorder_.alloc(
      ceil_div(std::exchange(bucket_used_elements_, 0), options_.ranks) * options_.element_bytes,
      Category::kGradient, "reduce.shard", kCommunicationStream);
  recorder_.record_stream(shard, options_.completion_delay);
  recorder_.free(shard);
}

void ShardedStates::optimizer_step(std::uint32_t) {
  std::vector<BufferId> norms;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    norms.push_back(recorder_.alloc(4, Category::kWorkspace, "clip.norm"));
  }
  BufferId total = recorder_.alloc(4, Category::kCommunication, "clip.total");
  for (BufferId& one : norms) recorder_.free(one);
  recorder_.temporary(4, Category::kWorkspace, "clip.factor");
  recorder_.free(total);
  if (options_.offloads_optimizer) {
    update_on_host();
  } else {
    update_on_device();
  }
}

void ShardedStates::update_on_device() {
  for (Unit& unit : units_) {
    const std::uint64_t bytes = shard_elements(unit) * 4;
    if (!unit.has_moments) {
      unit.has_moments = true;
      recorder_.alloc(4, Category::kOptimizer, "adam.step");
      for (const char* name : {"adam.master", "adam.moment1", "adam.moment2"}) {
        recorder_.alloc(bytes, Category::kOptimizer, name);
      }
    }
    BufferId wide = recorder_.alloc(bytes, Category::kOptimizer, "adam.gradient32");
    recorder_.temporary(bytes, Category::kOptimizer, "adam.temporary");
    recorder_.free(wide);
    recorder_.free(unit.gradient_shard);
  }
}

// Updated shards come back through two staging buffers in turn.
void ShardedStates::update_on_host() {
  std::vector<BufferId> staging;
  for (Unit& unit : units_) {
    if (staging.size() == 2) {
      recorder_.free(staging.front());
      staging.erase(staging.begin());
    }
    staging.push_back(recorder_.alloc(shard_elements(unit) * options_.element_bytes,
                                      Category::kCommunication, "upload.staging", kCopyStream));
    recorder_.record_stream(staging.back(), options_.completion_delay / 2);
  }
  for (BufferId& one : staging) recorder_.free(one);
}

}  // namespace sluice::replay::generated
