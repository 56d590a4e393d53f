// What a schedule generator needs to know: sizes of a model's units, and the options of one step.
// Plain data, no kernels: the same generator serves a real run, a plan for other hardware, and
// tests.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/memory_kinds.hpp"
#include "base/units.hpp"
#include "engine/schedule/saved_part.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::schedule {

struct UnitFootprint {
  std::string name;
  std::uint64_t elems = 0;  // of the flat element space; a multiple of 4,096
  bool has_input = true;
  bool is_head = false;
  bool recomputable = false;
  std::int32_t borrows = -1;  // the unit whose window it also reads (tied head)
  // Per micro-batch.
  std::uint64_t output_bytes = 0;
  std::uint64_t saved_bytes = 0;
  // What it consists of, in order. Empty: one part without a name, for both halves of backward.
  std::vector<SavedPart> saved_parts;
  std::uint64_t context_bytes = 0;
  std::uint64_t forward_workspace_bytes = 0;
  std::uint64_t backward_input_workspace_bytes = 0;
  std::uint64_t backward_weight_workspace_bytes = 0;
  // Rules that need whole tensors: fp32 elements of their sums, and of an update's workspace.
  std::uint64_t tensor_state_elems = 0;
  std::uint64_t update_workspace_bytes = 0;
  // norm_blocks_before[i]: norm blocks that begin before element 4,096 * i; size elems/4,096 + 1.
  std::vector<std::uint64_t> norm_blocks_before;
};

struct StepModel {
  std::vector<UnitFootprint> units;
  // Tied head: elements of the borrowed tensor, a multiple of 4,096; it is the first of its unit.
  std::uint64_t tied_elems = 0;
  std::uint64_t token_bytes = 0;        // tokens and targets of one micro-batch
  DType dtype = DType::kBF16;           // of weights and gradients
  kernels::OptimizerOptions optimizer;  // optimizer.weight == dtype
};

// Where each unit's state of a kind lies between uses.
struct Placement {
  std::vector<Tier> weight;
  std::vector<Tier> gradient;
  std::vector<Tier> optimizer;  // master and moments
  // Where what a pass leaves for a later one waits: a unit's output, the gradient of it, what the
  // forward pass saves. What is needed again soon stays on the device (activation_stream.hpp).
  // Empty: all of it does.
  std::vector<Tier> activation = {};
  // Where each part of what a unit saves waits, by unit and part. A unit without an entry: where
  // its activations do.
  std::vector<std::vector<Tier>> saved = {};

  Tier activation_of(std::int32_t unit) const {
    return activation.empty() ? Tier::kDevice : activation[static_cast<std::size_t>(unit)];
  }
  Tier saved_of(std::int32_t unit, std::size_t part) const {
    const auto at = static_cast<std::size_t>(unit);
    return at < saved.size() && part < saved[at].size() ? saved[at][part] : activation_of(unit);
  }
};

// Which of a step's passes come first. Results are the same: each unit's gradient is summed in
// micro-batch order either way.
enum class ComputeOrder : std::uint8_t {
  kMicrobatch,  // one micro-batch through all units, then the next: its activations at a time
  kUnit,  // all micro-batches through a unit, then the next unit: its weights are fetched once
};

// When the optimizer updates what a step's gradients are for. Results are the same.
enum class UpdatePlacement : std::uint8_t {
  kAfterBackward,
  kInBackward,   // each unit as soon as its gradient is complete; nothing may depend on the norm
  kNextForward,  // in the next step's forward pass, each unit just before its weights are needed
  // As kInBackward, as if all gradients were finite and the clip factor one, beside the state that
  // the step finds. Where that turns out wrong, a pass behind the step makes the true update.
  kSpeculative,
};

struct StepOptions {
  std::int32_t microbatches = 1;
  ComputeOrder order = ComputeOrder::kMicrobatch;
  UpdatePlacement update = UpdatePlacement::kAfterBackward;
  bool recompute = false;
  std::uint64_t chunk_bytes = 2 * kMiB;  // device slot; a multiple of the device granularity
  std::uint64_t piece_elems = 262144;    // in flight between pinned and storage; multiple of 4,096
  // Units whose weights are fetched ahead of the one in use; visits (activation_stream.hpp) that a
  // spilled activation is.
  std::int32_t prefetch = 1;
  std::uint64_t weight_slots = 0;     // slots that fetched weights may take; 0: just enough
  std::int32_t stream_lookahead = 2;  // pieces read ahead of the one being updated
  // The update's own pieces and how many of them are read ahead: many small ones keep a storage
  // device busier than a few large ones of the same bytes. 0 elements: as the two above.
  std::uint64_t update_piece_elems = 0;  // multiple of 4,096
  std::int32_t update_lookahead = 0;
  // Windows and the device arena lie in the same memory at different times (pack.hpp), which takes
  // less of it; what reuses memory then waits for more.
  bool shares_device = false;
  // Storage holds two versions of state, and room to save the state that lies elsewhere.
  bool durable = false;
  Placement placement;
};

// Dtype of the gradient as it waits for the optimizer: fp32 where micro-batches are summed.
constexpr DType accumulator_dtype(const StepModel& model, std::int32_t microbatches) {
  return microbatches > 1 ? DType::kF32 : model.dtype;
}

}  // namespace sluice::schedule
