// The passes of a training step in the order in which they compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct ComputeItem {
  Op op;
  std::int32_t unit;
  std::int32_t microbatch;
  std::int32_t run = 0;  // of a kRecompute: how often forward has run before (recompute.hpp)
};

// A message between two stages, in front of an item: a send of a value that an earlier item has
// made, or a receive of one that a later item reads.
struct ItemMessage {
  Op op = Op::kSendForward;
  std::int32_t unit = 0;  // the last one of the earlier stage: its output, or the gradient of it
  std::int32_t microbatch = 0;
  std::int32_t peer = 0;   // rank of the pipeline
  std::size_t before = 0;  // index of the item; the number of items: after all
};

struct StepItems {
  std::vector<ComputeItem> items;
  std::vector<ItemMessage> messages;  // in list order; none outside a pipeline
};

// The micro-batches that this rank computes, by their numbers in the whole step, ascending. With
// one sum micro-batch i lies on rank i mod N; else a rank has consecutive groups.
std::vector<std::int32_t> own_microbatches(const StepModel& model, const StepOptions& options);
// The rank's last micro-batch of the first update.
std::int32_t last_own_microbatch(const StepModel& model, const StepOptions& options);

// All passes of the rank's micro-batches through its units. In a pipeline they go in the order of
// the model's stages, else in the one that the options name.
StepItems training_items(const StepModel& model, const StepOptions& options);
// Whether passes are cut, and follow each other in an order that the options decide.
bool may_take_turns(const StepModel& model);
// Interleaved passes: the same ones over several micro-batches. A visit is a run of passes over
// one unit and micro-batch.
using Turn = std::vector<std::span<const ComputeItem>>;
// All items, in order. Without interleaving each is alone.
std::vector<Turn> turns_of(const StepOptions& options, std::span<const ComputeItem> items);
// The forward passes of the rank's first micro-batch.
StepItems evaluation_items(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
