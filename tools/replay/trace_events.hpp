// Turns a trace into the events that an allocator would have recorded, for writing files.
#pragma once

#include "allocator/record/memory_trace.hpp"

namespace sluice::replay {

// The result has only events and names. Each allocation gets an address of its own, and time counts
// operations. Memory that is held before the first operation is allocated first.
record::MemorySnapshot events_of(const record::MemoryTrace& trace);

}  // namespace sluice::replay
