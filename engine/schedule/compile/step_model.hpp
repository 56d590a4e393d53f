// The input of the schedule generator: sizes of a model's units, and the options of one step. It is
// plain data without kernels, so one generator serves real runs, plans for other hardware, and
// tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/block_counts.hpp"
#include "base/dtype.hpp"
#include "base/memory_kinds.hpp"
#include "base/units.hpp"
#include "engine/schedule/compile/recompute.hpp"
#include "engine/schedule/orders/stage_view.hpp"
#include "engine/schedule/pass_segments.hpp"
#include "engine/schedule/rank_view.hpp"
#include "engine/schedule/saved_part.hpp"
#include "kernels/optimizer_options.hpp"

namespace sluice::schedule {

struct UnitFootprint {
  std::string name;
  std::uint64_t elems = 0;  // of the flat element space; a multiple of 4,096
  bool has_input = true;
  bool is_head = false;
  bool recomputable = false;
  std::int32_t borrows = -1;  // a second unit that it reads the window of (tied head)
  // Per micro-batch.
  std::uint64_t output_bytes = 0;
  std::uint64_t saved_bytes = 0;
  // The parts of saved_bytes, in order. Empty: one unnamed part for both halves of backward.
  std::vector<SavedPart> saved_parts;
  std::uint64_t context_bytes = 0;
  std::uint64_t forward_workspace_bytes = 0;
  std::uint64_t backward_input_workspace_bytes = 0;
  std::uint64_t backward_weight_workspace_bytes = 0;
  UnitSegments segments;  // of its passes
  // Rules that need whole tensors: fp32 elements of their sums, and of an update's workspace.
  std::uint64_t tensor_state_elems = 0;
  std::vector<TensorBorder> tensor_borders = {};  // see Schedule; empty: it is one tensor
  std::uint64_t update_workspace_bytes = 0;
  // The norm blocks [begin, end) of tensors that tensor-parallel ranks have parts of; of all others
  // every rank has the same.
  std::vector<ElemRange> cut_norm_blocks = {};
  // norm_blocks_before[i]: norm blocks that begin before element 4,096 * i; size elems/4,096 + 1.
  BlockCounts norm_blocks_before;
};

struct StepModel {
  std::vector<UnitFootprint> units;
  // Tied head: elements of the borrowed tensor, a multiple of 4,096; it is the first of its unit.
  std::uint64_t tied_elems = 0;
  std::uint64_t token_bytes = 0;        // tokens and targets of one micro-batch
  DType dtype = DType::kBF16;           // of weights and gradients
  kernels::OptimizerOptions optimizer;  // optimizer.weight == dtype
  // The units of a host program may differ in rule and dtype: one for each of them, in place of the
  // two above. Only generate_update() takes such a model.
  std::vector<kernels::OptimizerOptions> unit_optimizers = {};
  RankView view;       // whose step it is, among data-parallel ranks
  StageView pipeline;  // and in a pipeline

  const kernels::OptimizerOptions& optimizer_of(std::int32_t unit) const {
    return unit_optimizers.empty() ? optimizer : unit_optimizers[static_cast<std::size_t>(unit)];
  }
  DType dtype_of(std::int32_t unit) const {
    return unit_optimizers.empty() ? dtype : optimizer_of(unit).weight;
  }
};

// The tier of each unit's state between uses, by kind.
struct Placement {
  std::vector<Tier> weight;
  std::vector<Tier> gradient;
  std::vector<Tier> optimizer;  // master and moments
  // The tier where activations wait for a later pass: a unit's output, its gradient, and the values
  // that forward saves. Values that are needed again soon stay on the device
  // (activation_stream.hpp). Empty: all stay on the device.
  std::vector<Tier> activation = {};
  // The tier of each saved part, by unit and part. A unit without an entry uses the tier of its
  // activations.
  std::vector<std::vector<Tier>> saved = {};
  // The tier where a rank's sums of its own groups of micro-batches wait for the next micro-batch,
  // if several ranks have such sums (has_partial_sums). Empty: all on the device.
  std::vector<Tier> partial = {};

  bool operator==(const Placement&) const = default;

  Tier activation_of(std::int32_t unit) const {
    return activation.empty() ? Tier::kDevice : activation[static_cast<std::size_t>(unit)];
  }
  Tier partial_of(std::int32_t unit) const {
    return partial.empty() ? Tier::kDevice : partial[static_cast<std::size_t>(unit)];
  }
  Tier saved_of(std::int32_t unit, std::size_t part) const {
    const auto at = static_cast<std::size_t>(unit);
    return at < saved.size() && part < saved[at].size() ? saved[at][part] : activation_of(unit);
  }
};

// Whether any activation waits on this tier or on one below it.
inline bool spills_activations(const Placement& placement, Tier highest = Tier::kPinned) {
  const auto leaves = [highest](Tier tier) { return tier >= highest; };
  return std::any_of(placement.activation.begin(), placement.activation.end(), leaves) ||
         std::any_of(placement.saved.begin(), placement.saved.end(), [&](const auto& tiers) {
           return std::any_of(tiers.begin(), tiers.end(), leaves);
         });
}

// The order of a step's passes. Results are the same, since each unit's gradient is summed in
// micro-batch order either way.
enum class ComputeOrder : std::uint8_t {
  kMicrobatch,  // one micro-batch through all units, then the next: its activations at a time
  kUnit,  // all micro-batches through a unit, then the next unit: its weights are fetched once
};

// The place of a step's optimizer updates. Results are the same.
enum class UpdatePlacement : std::uint8_t {
  kAfterBackward,
  kInBackward,   // each unit as soon as its gradient is complete; nothing may depend on the norm
  kNextForward,  // in the next step's forward pass, each unit just before its weights are needed
  // As kInBackward, on the assumption that all gradients are finite and the clip factor is one. The
  // result lies next to the state that the step finds. If the assumption fails, a pass after the
  // step makes the true update.
  kSpeculative,
};

// How ranks sum their gradients. The ring's order of additions differs from shard to shard and
// depends on the number of ranks: it is reproducible, and outside law 1 (ring_sum.hpp).
enum class GradientSum : std::uint8_t { kInOrder, kRing };

struct StepOptions {
  std::int32_t microbatches = 1;  // of each update, over all ranks
  // Equal, consecutive accumulation groups with a sum each, added by a balanced tree; divides
  // `microbatches`. It changes the bits of the sums. 1: one sum, in the order of micro-batches.
  std::int32_t fold_groups = 1;
  // kRing: stage 0 only, and a group for each rank.
  GradientSum sum = GradientSum::kInOrder;
  // Stage 0: elements of all shards that travel at once (rank_exchange.hpp).
  std::uint64_t bucket_elems = 4 << 20;
  // Groups, and not a ring: ranks that add their sums before those of other nodes (node_sum.hpp), a
  // power of two that divides the ranks. 0 and 1: all ranks exchange with each other.
  std::int32_t node_ranks = 0;
  ComputeOrder order = ComputeOrder::kMicrobatch;
  UpdatePlacement update = UpdatePlacement::kAfterBackward;
  Recomputation recompute;
  std::uint64_t chunk_bytes = 2 * kMiB;  // device slot; a multiple of the device granularity
  std::uint64_t piece_elems = 262144;    // in flight between pinned and storage; multiple of 4,096
  // Number of units with weights fetched ahead of the one in use, and number of visits
  // (activation_stream.hpp) that a spilled activation is fetched ahead.
  std::int32_t prefetch = 1;
  std::uint64_t weight_slots = 0;     // slots that fetched weights may take; 0: just enough
  std::int32_t stream_lookahead = 2;  // pieces read ahead of the one being updated
  // Pieces of the update alone, and the number of them read ahead. Many small pieces keep a storage
  // device busier than a few large ones of the same bytes. 0 elements: piece_elems and
  // stream_lookahead.
  std::uint64_t update_piece_elems = 0;  // multiple of 4,096
  std::int32_t update_lookahead = 0;
  // No later value takes the memory of the ring of deferred updates. So the last of its writes
  // drain during the passes that follow, and nothing waits for them.
  bool keeps_update_ring = false;
  // kInBackward and kSpeculative: the updates of so many units, from the first on, run in the next
  // forward pass instead (carried_units).
  std::int32_t carried_units = 0;
  // Several ranks: the number of later exchanges of gradients that begin before the parts of one
  // are summed. Without any, the compute lane waits for each exchange; each takes memory for the
  // gradient and the parts of one more unit.
  std::int32_t exchange_lag = 0;
  // Pipelines: so many units of each stage, from its last one down, recompute their parts before
  // the first of the stage's backward passes. These wait for the gradient of the next stage, so the
  // recomputation takes time of the bubble; the parts of all these units lie in memory at once.
  std::int32_t recompute_ahead = 0;
  // Tensor groups: the passes of so many micro-batches through a unit take turns, segment by
  // segment (compute_items.hpp), so that the sums of one are made in parallel with the segments of
  // the other. 1 or 2, in a pipeline 1.
  std::int32_t turns = 1;
  // Windows and the device arena use the same memory at different times (pack.hpp). That takes less
  // memory, but instructions that reuse memory wait longer.
  bool shares_device = false;
  // Storage holds two versions of state, and copies of the state that lies in other tiers.
  bool durable = false;
  Placement placement;
  // Pipelines: the units of each stage. Those of StepModel::pipeline are the same.
  std::vector<UnitRange> stages = {};

  bool operator==(const StepOptions&) const = default;
};

// The updates of one step: several, if its pipeline delays them.
constexpr std::int32_t update_count(const StepModel& model) {
  return model.pipeline.order.updates;
}
constexpr std::int32_t total_microbatches(const StepModel& model, const StepOptions& options) {
  return update_count(model) * options.microbatches;
}

// The number of units, from the first on, whose updates run in the next step's forward pass. Their
// gradients wait over the border of the step.
constexpr std::int32_t carried_units(const StepOptions& options, std::size_t units) {
  const auto all = static_cast<std::int32_t>(units);
  switch (options.update) {
    case UpdatePlacement::kAfterBackward:
      return 0;
    case UpdatePlacement::kNextForward:
      return all;
    case UpdatePlacement::kInBackward:
    case UpdatePlacement::kSpeculative:
      return std::min(options.carried_units, all);
  }
  return 0;
}
constexpr bool carries_updates(const StepOptions& options) {
  return options.update == UpdatePlacement::kNextForward ||
         (options.update != UpdatePlacement::kAfterBackward && options.carried_units > 0);
}

// Dtype of a sum of gradients: fp32 if micro-batches are summed.
constexpr DType accumulator_dtype(const StepModel& model, std::int32_t microbatches) {
  return microbatches > 1 ? DType::kF32 : model.dtype;
}

}  // namespace sluice::schedule
