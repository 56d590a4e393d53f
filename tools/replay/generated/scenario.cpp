#include "tools/replay/generated/scenario.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::replay::generated {
namespace {

void check_bounds(const GeneratorOptions& options) {
  struct Bound {
    const char* key;
    std::uint32_t value, low, high;
  };
  const Bound bounds[] = {
      {"micro_batches", options.micro_batches, 1, 256},
      {"layers", options.layers, 1, 256},
      {"hidden", options.hidden, 64, 65'536},
      {"heads", options.heads, 1, 512},
      {"kv_heads", options.kv_heads, 1, 512},
      {"ffn", options.ffn, 64, 262'144},
      {"vocab", options.vocab, 64, 1'048'576},
      {"sequence", options.sequence, 16, 1'048'576},
      {"micro_batch", options.micro_batch, 1, 4'096},
      {"ranks", options.ranks, 1, 65'536},
  };
  const auto refuse = [](const std::string& key, std::uint32_t value, const std::string& rule) {
    throw InputError("trace generator: " + key + " = " + std::to_string(value) + " must be " +
                     rule);
  };
  for (const Bound& bound : bounds) {
    if (bound.value != 0 && (bound.value < bound.low || bound.value > bound.high)) {
      refuse(bound.key, bound.value,
             "0 (drawn), or " + std::to_string(bound.low) + " to " + std::to_string(bound.high));
    }
  }
  if (options.iterations < 1 || options.iterations > 1'000) {
    refuse("iterations", options.iterations, "1 to 1000");
  }
}

std::uint64_t step_of_four(Draws& draws, const std::uint64_t (&range)[2]) {
  return range[0] + 4 * draws.below((range[1] - range[0]) / 4 + 1);
}

std::uint64_t power_of_two(Draws& draws, const std::uint64_t (&range)[2]) {
  std::uint64_t doublings = 0;
  while ((range[0] << (doublings + 1)) <= range[1]) ++doublings;
  return range[0] << draws.below(doublings + 1);
}

std::uint64_t choose(std::uint64_t given, std::uint64_t drawn) {
  return given ? given : drawn;
}

// Every parameter is drawn, even if it is given, so that giving one does not change the others.
TransformerShape make_shape(const GeneratorOptions& options, const FamilyRanges& ranges,
                            Draws& draws) {
  TransformerShape shape;
  shape.is_gated = draws.chance(0.6);
  shape.is_fused = draws.chance(0.6);
  shape.layers = choose(options.layers, step_of_four(draws, ranges.layers));
  const std::uint64_t drawn_heads = step_of_four(draws, ranges.heads);
  const std::uint64_t drawn_groups = draws.one_of({1, 1, 2, 4});
  const std::uint64_t drawn_vocab = draws.one_of({32'000, 32'768, 50'304, 65'536, 128'256});
  if (options.heads != 0) {
    shape.heads = options.heads;
  } else if (options.hidden != 0) {
    shape.heads = std::max<std::uint64_t>(1, options.hidden / 128);
  } else {
    shape.heads = drawn_heads;
  }
  shape.hidden = choose(options.hidden, shape.heads * 128);
  const bool divides = shape.is_gated && shape.heads % drawn_groups == 0;
  shape.kv_heads = choose(options.kv_heads, divides ? shape.heads / drawn_groups : shape.heads);
  // SwiGLU has three matrices instead of two, so ffn is 8h/3, rounded as in Llama.
  const std::uint64_t gated_ffn = round_up(shape.hidden * 8 / 3, 256);
  shape.ffn = choose(options.ffn, shape.is_gated ? gated_ffn : 4 * shape.hidden);
  shape.vocab = choose(options.vocab, drawn_vocab);
  if (shape.hidden % shape.heads != 0 || shape.heads % shape.kv_heads != 0) {
    throw InputError("trace generator: hidden = " + std::to_string(shape.hidden) +
                     " must be a multiple of heads = " + std::to_string(shape.heads) +
                     ", and that of kv_heads = " + std::to_string(shape.kv_heads));
  }
  return shape;
}

}  // namespace

Scenario make_scenario(const GeneratorOptions& options, const FamilyRanges& ranges) {
  check_bounds(options);
  Draws draws(options.seed, ("generated/shape/" + options.family).c_str());
  Scenario scenario;
  scenario.options = options;
  scenario.iterations = options.iterations;
  scenario.shape = make_shape(options, ranges, draws);
  scenario.batch.sequence = choose(options.sequence, power_of_two(draws, ranges.sequence));
  scenario.batch.sequences = options.micro_batch;
  scenario.micro_batches = choose(options.micro_batches,
                                  draws.between(ranges.micro_batches[0], ranges.micro_batches[1]));
  scenario.ranks = choose(options.ranks, power_of_two(draws, ranges.ranks));
  draws.skip(2);  // so that a seed gives the traces of earlier versions
  scenario.shape.is_scaled = draws.chance(0.35);
  return scenario;
}

std::uint64_t fit_micro_batch(Scenario& scenario, const PeakTarget& target) {
  Draws draws(scenario.options.seed, "generated/target");
  const std::uint64_t aim_bytes =
      std::max(draws.between(12 * kGiB, 58 * kGiB), target.fixed_bytes + 2 * kGiB);
  const std::uint64_t room_bytes = aim_bytes - target.fixed_bytes;
  if (scenario.batch.sequences != 0) return room_bytes;
  std::uint64_t each_bytes = std::max<std::uint64_t>(1, target.bytes_per_sequence);
  constexpr std::uint64_t kShortest = 256;
  while (each_bytes > room_bytes && scenario.options.sequence == 0 &&
         scenario.batch.sequence > kShortest) {
    scenario.batch.sequence /= 2;
    each_bytes /= 2;
  }
  scenario.batch.sequences = std::clamp<std::uint64_t>(room_bytes / each_bytes, 1, 64);
  return room_bytes;
}

std::uint64_t bytes_per_sequence(const Scenario& scenario) {
  const std::uint64_t tokens = scenario.batch.sequence;
  return scenario.shape.layers * saved_block_bytes(scenario.shape, tokens) +
         loss_peak_bytes(scenario.shape, tokens);
}

void warm_up(TraceRecorder& recorder, std::uint64_t seed) {
  Draws draws(seed, "generated/warm_up");
  // The workspaces of cuBLAS and cuBLASLt stay.
  recorder.alloc(draws.chance(0.5) ? 32 * kMiB : 8 * kMiB + 128 * kKiB, Category::kWorkspace,
                 "cublas.workspace");
  recorder.alloc(kMiB, Category::kWorkspace, "cublaslt.workspace");
  const std::uint64_t trials = draws.between(2, 12);
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    // The autotuner writes this buffer between timings, so that each starts with a cold cache.
    BufferId flush = recorder.alloc(256 * kMiB, Category::kWorkspace, "autotune.cache");
    recorder.temporary(draws.between(1, 4096) * 64 * kKiB, Category::kWorkspace, "autotune.trial");
    recorder.free(flush);
  }
}

void log_iteration(TraceRecorder& recorder, const Scenario& scenario, std::uint64_t iteration) {
  const std::uint32_t every = scenario.options.log_every;
  if (every == 0 || iteration % every != 0) return;
  std::vector<BufferId> values;
  for (int i = 0; i < 4; ++i) {
    values.push_back(recorder.alloc(4, Category::kExternal, "log.value"));
  }
  BufferId gathered = recorder.alloc(4 * scenario.ranks, Category::kCommunication, "log.gather");
  for (BufferId& one : values) recorder.free(one);
  recorder.free(gathered);
}

void run_iterations(TraceRecorder& recorder, const Scenario& scenario, UnitStates& states,
                    const std::function<void()>& run_passes) {
  for (std::uint32_t iteration = 0; iteration < scenario.iterations; ++iteration) {
    recorder.step();
    if (iteration == 0) warm_up(recorder, scenario.options.seed);
    run_passes();
    states.optimizer_step(iteration);
    log_iteration(recorder, scenario, iteration);
  }
}

// One forward and one backward pass.
static void run_micro_batch(TransformerPass& pass, UnitStates& states, std::uint64_t layers) {
  const std::size_t head = layers + 1;
  std::vector<SavedBlock> blocks(layers);
  SavedHead saved_head;
  PassInputs inputs = pass.begin_inputs();
  states.before_forward(0);
  BufferId stream = pass.forward_embedding(inputs);
  states.after_forward(0);
  for (std::size_t unit = 1; unit < head; ++unit) {
    states.before_forward(unit);
    stream = pass.forward_block(unit, stream, blocks[unit - 1]);
    states.after_forward(unit);
  }
  states.before_forward(head);
  pass.forward_head(head, stream, saved_head);
  states.after_forward(head);
  states.before_backward(head);
  BufferId gradient = pass.backward_head(head, saved_head);
  states.after_backward(head);
  for (std::size_t unit = head - 1; unit > 0; --unit) {
    states.before_backward(unit);
    gradient = pass.backward_block(unit, gradient, blocks[unit - 1]);
    states.after_backward(unit);
  }
  states.before_backward(0);
  pass.backward_embedding(gradient);
  states.after_backward(0);
  pass.end_inputs(inputs);
  pass.end_pass();
}

void run_training(TraceRecorder& recorder, const Scenario& scenario, TransformerPass& pass,
                  UnitStates& states) {
  run_iterations(recorder, scenario, states, [&] {
    for (std::uint64_t m = 0; m < scenario.micro_batches; ++m) {
      run_micro_batch(pass, states, scenario.shape.layers);
    }
  });
}

}  // namespace sluice::replay::generated
