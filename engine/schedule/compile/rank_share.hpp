// The state and the micro-batches of a step that fall to the model's rank (rank_view.hpp). All of
// them if the rank is alone.
#pragma once

#include <cstdint>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::schedule {

// Elements of a unit. The number after the last unit stands for the tied use, which has only a
// gradient.
std::uint64_t unit_elems(const StepModel& model, std::int32_t unit);
// The range of the unit that a rank owns.
ElemRange shard_of(const StepModel& model, std::int32_t unit, std::int32_t rank);
// The elements that this rank's home holds; empty: the rank has no such home.
ElemRange home_range(const StepModel& model, StateKind kind, std::int32_t unit);
// The sums of whole tensors that this rank's homes of optimizer state hold, in their own numbering.
ElemRange sums_range(const StepModel& model, std::int32_t unit);
// Whether the homes of gradients that several ranks sum hold them rounded, in the gradients' own
// dtype. Their sums are transient buffers on the device.
bool rounds_gradients(const StepModel& model, const StepOptions& options);
// The dtype of the homes of gradients.
DType gradient_home_dtype(const StepModel& model, const StepOptions& options);
// Whether each of several ranks sums several micro-batches of groups of its own before it sends the
// sum. Such sums are of whole units, not of shards.
bool has_partial_sums(const StepModel& model, const StepOptions& options);
// The sums of a unit that wait at once between micro-batches, at most.
std::int32_t partial_sums_at_once(const StepModel& model, const StepOptions& options);
// The number of micro-batches that each rank computes in an update.
std::int32_t own_microbatch_count(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
