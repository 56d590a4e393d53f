// A dense model whose states stay on the device.
#include "base/units.hpp"
#include "tools/replay/generated/scenario.hpp"

namespace sluice::replay::generated {
namespace {

constexpr FamilyRanges kDenseRanges{{16, 28}, {12, 20}, {1024, 4096}, {1, 3}, {1, 64}};

StateOptions draw_states(const Scenario& scenario, bool& weight_copies) {
  Draws draws(scenario.options.seed, "generated/states");
  StateOptions states;
  const std::uint64_t e = scenario.shape.element_bytes;
  weight_copies = draws.chance(0.3);
  states.weight_bytes = states.gradient_bytes = weight_copies ? 4 : e;
  states.has_master = states.weight_bytes < 4;
  states.has_buckets = scenario.ranks > 1 && draws.chance(0.6);
  states.optimizer = static_cast<OptimizerKind>(draws.below(3));
  return states;
}

std::uint64_t state_bytes(const Scenario& scenario, const StateOptions& states,
                          bool weight_copies) {
  std::uint64_t per_element = states.weight_bytes + states.gradient_bytes + 8;
  if (states.has_master) per_element += 4;
  if (states.has_buckets) per_element += states.gradient_bytes;
  if (weight_copies) per_element += 2;
  return element_count(model_units(scenario.shape)) * per_element;
}

}  // namespace

void generate_dense(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kDenseRanges);
  bool weight_copies = false;
  const StateOptions state_options = draw_states(scenario, weight_copies);
  fit_micro_batch(scenario, {state_bytes(scenario, state_options, weight_copies),
                             bytes_per_sequence(scenario)});
  ModelStates states(recorder, model_units(scenario.shape), state_options);
  TransformerPass pass(recorder, scenario.shape, states, weight_copies);
  pass.set_batch(scenario.batch);
  states.allocate_weights();
  run_training(recorder, scenario, pass, states);
}

}  // namespace sluice::replay::generated
