// Families with states that stay on the device: dense, varlen, lora.
#include <algorithm>
#include <cmath>

#include "base/units.hpp"
#include "tools/replay/generated/scenario.hpp"

namespace sluice::replay::generated {
namespace {

constexpr FamilyRanges kDenseRanges{{16, 28}, {12, 20}, {1024, 4096}, {1, 3}, {1, 64}};
constexpr FamilyRanges kVarlenRanges{{12, 20}, {12, 20}, {2048, 8192}, {2, 4}, {1, 64}};
constexpr FamilyRanges kLoraRanges{{28, 40}, {28, 40}, {1024, 4096}, {1, 2}, {1, 8}};

StateOptions draw_states(const Scenario& scenario, bool& weight_copies) {
  Draws draws(scenario.options.seed, "generated/states");
  StateOptions states;
  const std::uint64_t e = scenario.shape.element_bytes;
  weight_copies = draws.chance(0.3) && e == 2;
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

// Lengths are log-normal and cut at the longest: most are short, a few fill the context.
std::uint64_t draw_length(Draws& draws, std::uint64_t longest) {
  const double median = static_cast<double>(longest) / 6;
  const double length = median * std::exp(0.9 * draws.normal());
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(length), 16, longest);
}

// A padded batch has the longest length times the number of sequences. A packed one is a single row
// of all tokens.
Batch draw_batch(Draws& draws, const Batch& limit, bool packed) {
  std::uint64_t sum = 0;
  std::uint64_t longest = 0;
  for (std::uint64_t i = 0; i < limit.sequences; ++i) {
    const std::uint64_t length = draw_length(draws, limit.sequence);
    sum += length;
    longest = std::max(longest, length);
  }
  if (packed) return {1, sum};
  return {limit.sequences, round_up(longest, 8)};
}

}  // namespace

void generate_dense(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kDenseRanges);
  bool weight_copies = false;
  const StateOptions state_options = draw_states(scenario, weight_copies);
  fit_micro_batch(scenario, {state_bytes(scenario, state_options, weight_copies),
                             bytes_per_sequence(scenario, scenario.shape.layers)});
  ModelStates states(recorder, model_units(scenario.shape), state_options);
  TransformerPass pass(recorder, scenario.shape, states, 0, weight_copies);
  pass.set_batch(scenario.batch);
  states.allocate_weights();
  run_training(recorder, scenario, pass, states);
}

void generate_varlen(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kVarlenRanges);
  bool weight_copies = false;
  const StateOptions state_options = draw_states(scenario, weight_copies);
  fit_micro_batch(scenario, {state_bytes(scenario, state_options, weight_copies),
                             bytes_per_sequence(scenario, scenario.shape.layers)});
  ModelStates states(recorder, model_units(scenario.shape), state_options);
  TransformerPass pass(recorder, scenario.shape, states, 0, weight_copies);
  Draws draws(options.seed, "generated/lengths");
  const bool packed = draws.chance(0.5);
  states.allocate_weights();
  run_iterations(recorder, scenario, states, [&] {
    for (std::uint64_t m = 0; m < scenario.micro_batches; ++m) {
      pass.set_batch(draw_batch(draws, scenario.batch, packed));
      run_micro_batch(recorder, pass, states, scenario.shape.layers, 0);
    }
  });
}

void generate_lora(TraceRecorder& recorder, const GeneratorOptions& options) {
  Scenario scenario = make_scenario(options, kLoraRanges);
  scenario.shape.is_gated = true;
  const TransformerShape& shape = scenario.shape;
  fit_micro_batch(scenario, {element_count(model_units(shape)) * shape.element_bytes,
                             bytes_per_sequence(scenario, shape.layers)});
  const std::uint64_t rank = Draws(options.seed, "generated/adapter").one_of({8, 16, 64});
  StateOptions base_options;
  base_options.weight_bytes = shape.element_bytes;
  ModelStates base(recorder, model_units(shape), base_options);
  AdapterStates adapters(recorder, shape, rank);
  TransformerPass pass(recorder, shape, adapters, rank);
  pass.set_batch(scenario.batch);
  base.allocate_weights();
  adapters.allocate_weights();
  run_training(recorder, scenario, pass, adapters);
}

}  // namespace sluice::replay::generated
