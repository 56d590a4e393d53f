// Reads logs of RMM (rmm::mr::logging_resource_adaptor), of all versions that write the columns
// Thread, Time, Action, Pointer, Size and Stream.
#pragma once

#include <string>

#include "allocator/record/format/byte_source.hpp"
#include "allocator/record/memory_trace.hpp"
#include "allocator/record/trace_from_snapshot.hpp"

namespace sluice::replay {

// Columns may have any order, and others are ignored. Actions are allocate and free (also
// allocate_async, deallocate and deallocate_async); "allocate failure" becomes a refused request.
// Memory that the log frees without an allocation was held when the log began. Freed memory is
// usable on its stream at once, because RMM orders uses by stream. Limits: 16 GiB and 25 million
// lines. InputError with the file, the line and the right form; also for memory above
// record::kMostHeldBytes. A failed request may have any size.
record::MemorySnapshot read_rmm_log(record::ByteSource& source);
record::MemoryTrace read_rmm_trace(const std::string& path,
                                   record::TraceDefects* defects = nullptr);

}  // namespace sluice::replay
