// The parameters of a trace, with none left open, and functions that the families share.
#pragma once

#include <cstdint>
#include <functional>

#include "tools/replay/generated/draws.hpp"
#include "tools/replay/generated/model_states.hpp"
#include "tools/replay/generated/trace_generator.hpp"
#include "tools/replay/generated/trace_recorder.hpp"
#include "tools/replay/generated/transformer_pass.hpp"

namespace sluice::replay::generated {

struct Scenario {
  GeneratorOptions options;  // as given
  TransformerShape shape;
  Batch batch;
  std::uint64_t iterations = 0;
  std::uint64_t micro_batches = 0;
  std::uint64_t ranks = 0;
};

// The ranges from which a family draws parameters that the options leave open.
struct FamilyRanges {
  std::uint64_t layers[2];    // first and last, in steps of 4
  std::uint64_t heads[2];     // of size 128, in steps of 4
  std::uint64_t sequence[2];  // powers of two
  std::uint64_t micro_batches[2];
  std::uint64_t ranks[2];  // powers of two
};

// Checks the bounds of the options (InputError). micro_batch stays 0 if the options leave it open.
Scenario make_scenario(const GeneratorOptions& options, const FamilyRanges& ranges);

// The parts of a peak.
struct PeakTarget {
  std::uint64_t fixed_bytes = 0;         // states
  std::uint64_t bytes_per_sequence = 0;  // activations
};
// Sets the micro-batch to the most sequences, at least 1, that stay below a drawn target of 12 to
// 58 GiB. If one sequence does not, it gets shorter. Values that the options give are not changed.
// Returns the part of the target that fixed_bytes leaves.
std::uint64_t fit_micro_batch(Scenario& scenario, const PeakTarget& target);

// The bytes of saved activations and of the loss for one sequence.
std::uint64_t bytes_per_sequence(const Scenario& scenario);

// Allocations of the first iteration alone: library workspaces, and the trials of an autotuner.
void warm_up(TraceRecorder& recorder, std::uint64_t seed);
// Every log_every iterations, gathers a few scalars and sums them.
void log_iteration(TraceRecorder& recorder, const Scenario& scenario, std::uint64_t iteration);

// The loop of all families. Each iteration begins with a step (the first also with warm_up), then
// calls `run_passes`, the optimizer's step, and log_iteration.
void run_iterations(TraceRecorder& recorder, const Scenario& scenario, UnitStates& states,
                    const std::function<void()>& run_passes);
// run_iterations with a forward and a backward pass for each micro-batch.
void run_training(TraceRecorder& recorder, const Scenario& scenario, TransformerPass& pass,
                  UnitStates& states);

void generate_dense(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_zero3(TraceRecorder& recorder, const GeneratorOptions& options);
void generate_moe(TraceRecorder& recorder, const GeneratorOptions& options);

}  // namespace sluice::replay::generated
