// Our own file of memory events: CSV with the columns
//
//   time_ns,action,stream,address,bytes,category,name,pool
//
// There is a line for each event, oldest first. Actions have PyTorch's names (alloc,
// free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, oom,
// snapshot), or "step" and "flush". Categories have ours (weight, gradient, …, external). Numbers
// are decimal, or hexadecimal after 0x; a field that does not apply is 0 or empty. `pool` is below
// 2^16: 0, or the private pool (of a graph) of an allocation, or of a flush; older files lack that
// column. "oom" is a request that was refused; its `address` is the device's free memory then.
// Names are in quotes where RFC 4180 demands it.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "allocator/record/format/byte_source.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

inline constexpr std::string_view kMemoryTraceCsvHeader =
    "time_ns,action,stream,address,bytes,category,name,pool";

// Writes the events. Segments, settings and device are not part of the file. The caller checks the
// state of the stream.
void write_memory_trace_csv(const MemorySnapshot& snapshot, std::ostream& out);

// Returns a snapshot that has only events and names. Limits: 16 GiB, 50 million events and a
// million different names. InputError with the file, the line and the right form; also for blocks
// and segments above kMostHeldBytes. An "oom" may have any size.
MemorySnapshot read_memory_trace_csv(const std::string& path);
MemorySnapshot read_memory_trace_csv(ByteSource& source);

}  // namespace sluice::record
