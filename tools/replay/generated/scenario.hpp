// A trace's parameters with nothing left open, and what its families share.
#pragma once

#include <cstdint>

#include "tools/replay/generated/draws.hpp"
#include "tools/replay/generated/model_states.hpp"
#include "tools/replay/generated/trace_recorder.hpp"
#include "tools/replay/generated/transformer_pass.hpp"
#include "tools/replay/generated/trace_generator.hpp"

namespace sluice::replay::generated {

struct Scenario {
  GeneratorOptions options;  // as given
  TransformerShape shape;
  Batch batch;
  std::uint64_t iterations = 0;
  std::uint64_t micro_batches = 0;
  std::uint64_t ranks = 0;
  std::uint64_t stages = 0;
  std::uint64_t chunks = 0;
};

// What a family draws from, where the options leave it open.
struct FamilyRanges {
  std::uint64_t layers[2];    // first and last, in steps of 4
  std::uint64_t heads[2];     // of size 128, in steps of 4
  std::uint64_t sequence[2];  // powers of two
  std::uint64_t micro_batches[2];
  std::uint64_t ranks[2];  // powers of two
};

// Weights and gradients of `elements`, and a rank's shard of 12 bytes each of optimizer states.
std::uint64_t sharded_state_bytes(const Scenario& scenario, std::uint64_t elements);

// Bounds of the options are checked (InputError); micro_batch is left 0 where it is open.
Scenario make_scenario(const GeneratorOptions& options, const FamilyRanges& ranges);

// What a peak is made of.
struct PeakTarget {
  std::uint64_t fixed_bytes = 0;         // states
  std::uint64_t bytes_per_sequence = 0;  // activations
};
// The most sequences, at least 1, that stay below a drawn target (12 to 58 GiB); where one does
// not, shorter ones. Leaves what the options give. Returns what the target leaves beside
// fixed_bytes.
std::uint64_t fit_micro_batch(Scenario& scenario, const PeakTarget& target);

// Saved activations and loss of one sequence through `layers` blocks.
std::uint64_t bytes_per_sequence(const Scenario& scenario, std::uint64_t saved_layers);

// What the first iteration does and no later one: library workspaces, an autotuner's trials.
void warm_up(TraceRecorder& recorder, std::uint64_t seed);
// Every log_every iterations: a few scalars gathered, and their sum.
void log_iteration(TraceRecorder& recorder, const Scenario& scenario, std::uint64_t iteration);

// One forward and backward pass. checkpoint_every: 1: each block is run again in backward; 2: every
// other one; 0: none.
void run_micro_batch(TraceRecorder& recorder, TransformerPass& pass, UnitStates& states,
                     std::uint64_t layers, std::uint64_t checkpoint_every);

void generate_dense(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_varlen(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_lora(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_zero3(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_recompute(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_pipeline(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_moe(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_rlhf(TraceRecorder& recorder, const GeneratorOptions& options);

}  // namespace sluice::replay::generated
