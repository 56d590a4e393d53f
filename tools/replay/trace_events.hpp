// A trace as the events that an allocator would have recorded: for files.
#pragma once

#include "allocator/record/memory_trace.hpp"

namespace sluice::replay {

// Events and names alone. An allocation whose address is not known gets one of its own; time counts
// operations. What was held before the first operation is allocated first.
record::MemorySnapshot events_of(const record::MemoryTrace& trace);

}  // namespace sluice::replay
