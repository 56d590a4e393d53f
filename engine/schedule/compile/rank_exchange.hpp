// The collectives of a step of several ranks. Each function emits nothing for a rank that is alone.
// All ranks emit the same collectives in the same order: an empty shard makes an instruction
// without parts, so that no rank waits for one that has nothing to bring.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// A gradient of one micro-batch, or a part of one.
struct GradientPart {
  std::int32_t microbatch = -1;  // of the whole step
  BufferId buffer = kNoId;
};

// Makes a window or whole home of the unit's weights or gradient complete. `from` holds this
// rank's shard: the window itself, or a home of the shard on the device.
void emit_gather(StepBuilder& builder, std::int32_t unit, BufferId from, BufferId window);

// The slices of a rank's shard that travel one after another, as many for every rank; some may be
// empty. Plain data parallelism (stage 0) has buckets of a fixed size, which are equal slices of
// all shards; else the unit is one bucket.
std::vector<ElemRange> bucket_slices(const StepBuilder& builder, std::int32_t unit,
                                     std::int32_t rank);

// Exchanges the unit's gradients, or sums of them, that each rank has in its `window`. The
// micro-batches of the ranks, or the last ones of their sums, follow each other: that of rank r is
// `first` + r * `stride`. Returns the N parts of this rank's shard in their order, its own in the
// window. Empty if its shard is.
std::vector<GradientPart> emit_exchange(StepBuilder& builder, std::int32_t unit, BufferId window,
                                        std::int32_t first, std::int32_t stride);

// An asynchronous server: sends the gradient of a micro-batch from the rank whose it is (`window`,
// on this rank alone) to the server. Returns the part there; nothing elsewhere. Nothing travels if
// the server itself has computed it.
std::vector<GradientPart> emit_arrival(StepBuilder& builder, std::int32_t unit,
                                       std::int32_t microbatch, BufferId window);

// Brings updated weights, of which each rank has its shard in `weights`, to all ranks; an
// asynchronous server's to the rank whose gradient was applied.
void emit_new_weights(StepBuilder& builder, std::int32_t unit, BufferId weights);

// An asynchronous server's last weights, to the ranks that have earlier ones.
void emit_last_weights(StepBuilder& builder);

// Where servers take turns: the unit's optimizer state moves on to the server of the next update.
void emit_state_transfer(StepBuilder& builder, std::int32_t unit);

// Keeps the parts until all of them are added. Else the memory of a rank's own part would be free
// earlier or later than others' by the rank's number, and ranks that do the same would have other
// lists.
void hold_parts(StepBuilder& builder, const std::vector<GradientPart>& parts);

// Adds parts of one range, which follow each other in the order of groups, by the balanced tree on
// the device. Parts in the gradients' own dtype are single micro-batches and become fp32 first.
// Returns the sum; kNoId: there are no parts.
BufferId emit_fold_of_parts(StepBuilder& builder, std::int32_t unit, ElemRange range,
                            const std::vector<GradientPart>& parts);

// Completes the partials of the norm, of which each rank has computed those of its shards: first
// between the data-parallel ranks of its units, then in its tensor group and between the ranks of
// the pipeline.
void emit_norm_gather(StepBuilder& builder);

}  // namespace sluice::schedule
