// Logs of RMM (rmm::mr::logging_resource_adaptor), of all versions that write the columns Thread,
// Time, Action, Pointer, Size and Stream.
#pragma once

#include <string>

#include "allocator/record/format/byte_source.hpp"
#include "allocator/record/memory_trace.hpp"
#include "allocator/record/trace_from_snapshot.hpp"

namespace sluice::replay {

// Columns in any order; more of them are passed over. Actions: allocate and free (also
// allocate_async, deallocate, deallocate_async); "allocate failure" is an event without an
// operation. What the log frees without having allocated it was held when the log began. The
// memory returns to its stream at once: RMM orders uses by stream. At most 16 GiB and 25 million
// lines. InputError with the file, the line and what would be right.
record::MemorySnapshot read_rmm_log(record::ByteSource& source);
record::MemoryTrace read_rmm_trace(const std::string& path, record::TraceDefects* defects = nullptr);

}  // namespace sluice::replay
