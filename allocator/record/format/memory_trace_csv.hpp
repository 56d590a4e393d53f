// Our own file of memory events: CSV with the columns
//
//   time_ns,action,stream,address,bytes,category,name,pool
//
// A line for each event, oldest first. Actions in PyTorch's words (alloc, free_requested,
// free_completed, segment_alloc, segment_free, segment_map, segment_unmap, oom, snapshot) and
// "step" and "flush"; categories in ours (weight, gradient, …, external). Numbers are decimal or,
// behind 0x, hexadecimal; what an event has not is 0 or empty. pool, below 2^16: 0, or the private
// pool (of a graph) of an allocation; older files end before that column. Names in quotes where RFC
// 4180 asks for them.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "allocator/record/format/byte_source.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

inline constexpr std::string_view kMemoryTraceCsvHeader =
    "time_ns,action,stream,address,bytes,category,name,pool";

// Writes the events; segments, settings and device are not part of the file. The caller checks the
// stream.
void write_memory_trace_csv(const MemorySnapshot& snapshot, std::ostream& out);

// A snapshot with events and names alone. At most 16 GiB, 50 million events and a million different
// names. InputError with the file, the line and what would be right.
MemorySnapshot read_memory_trace_csv(const std::string& path);
MemorySnapshot read_memory_trace_csv(ByteSource& source);

}  // namespace sluice::record
