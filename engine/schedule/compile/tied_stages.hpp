// The exchanges of a tied head whose tensor's unit is of another rank of the pipeline.
//
// The head's rank keeps the sum of the tied use's gradient, and a copy of the tensor's unit's
// weights. After the last backward pass it sends the sum, as it is, to the rank of the tensor.
// That rank adds it last, as one rank does, takes the norm once, updates, and sends the new
// weights back. With data-parallel ranks as well each exchanges its own shard with the rank of the
// same shard.
#pragma once

#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

// Moves a part of the sum: out of `buffer` on the head's rank, into `buffer` on the other. Both
// ranks call it for the same ranges in the same order. Precondition: builder.ties_ranks(), and the
// rank is one of the two.
void emit_tied_sum(StepBuilder& builder, BufferId buffer, ElemRange range);

// Moves the updated weights of unit 0, which have this version, back to the copy. Emits nothing for
// other ranks than the two.
void emit_tied_weights(StepBuilder& builder, std::int32_t version);

}  // namespace sluice::schedule
