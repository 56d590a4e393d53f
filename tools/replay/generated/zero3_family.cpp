// A dense model with sharded states: a unit is whole only while it is used.
#include "base/units.hpp"
#include "tools/replay/generated/scenario.hpp"
#include "tools/replay/generated/sharded_states.hpp"

namespace sluice::replay::generated {
namespace {

constexpr FamilyRanges kZero3Ranges{{24, 36}, {32, 48}, {1024, 4096}, {1, 2}, {8, 64}};

ShardOptions draw_shards(const Scenario& scenario) {
  Draws draws(scenario.options.seed, "generated/shards");
  ShardOptions shards;
  shards.ranks = scenario.ranks;
  shards.element_bytes = scenario.shape.element_bytes;
  shards.prefetch_units = draws.between(1, 3);
  shards.gathers_parameters = draws.chance(0.4);
  shards.offloads_optimizer = draws.chance(0.6);
  // DeepSpeed's default bucket is 5e8 elements; smaller ones are common.
  const std::uint64_t bucket_elements = draws.one_of({50'000'000, 100'000'000, 500'000'000});
  if (shards.offloads_optimizer && draws.chance(0.5)) shards.bucket_elements = bucket_elements;
  shards.completion_delay = draws.between(4, 40);
  return shards;
}

// The bytes of shards and of whole tensors: units in use or prefetched, gradients, and the bucket.
std::uint64_t state_bytes(const Scenario& scenario, const ShardOptions& shards) {
  const std::uint64_t e = shards.element_bytes;
  const auto units = model_units(scenario.shape);
  const std::uint64_t per_element = shards.offloads_optimizer ? e : 2 * e + 12;
  const std::uint64_t unit_bytes = element_count(block_layout(scenario.shape).parameters) * e;
  return element_count(units) / shards.ranks * per_element +
         (shards.prefetch_units + 3) * unit_bytes + 2 * element_count(units.back()) * e +
         shards.bucket_elements * e;
}

}  // namespace

void generate_zero3(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kZero3Ranges);
  const ShardOptions shards = draw_shards(scenario);
  fit_micro_batch(scenario, {state_bytes(scenario, shards), bytes_per_sequence(scenario)});
  ShardedStates states(recorder, model_units(scenario.shape), shards);
  TransformerPass pass(recorder, scenario.shape, states);
  pass.set_batch(scenario.batch);
  states.allocate_weights();
  run_training(recorder, scenario, pass, states);
}

}  // namespace sluice::replay::generated
