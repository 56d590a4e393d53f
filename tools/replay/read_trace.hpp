// Reads a trace from a file of any supported format. The content tells the format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "allocator/packing/arena_packing.hpp"
#include "allocator/record/memory_trace.hpp"
#include "allocator/record/trace_from_snapshot.hpp"

namespace sluice::replay {

struct ReadTraceOptions {
  // The device of a PyTorch snapshot. If not given, the one with the most events, or without events
  // with the most reserved bytes.
  std::optional<std::int32_t> device;
};

struct ReadTrace {
  record::MemoryTrace trace;
  record::TraceDefects defects;
};

// The formats, with MemoryTrace::format, and their limits:
// - "torch": a pickle of torch.cuda.memory._snapshot(): 4 GiB, 50 million events;
// - "sluice": memory_trace_csv.hpp: 16 GiB, 50 million events;
// - "rmm": rmm_log.hpp: 16 GiB, 25 million lines;
// - "lifetimes": lifetime_csv.hpp: 64 MiB, 100,000 buffers.
// Throws InputError if the file has none of these formats (the message lists them), is broken, or
// exceeds a limit.
ReadTrace read_trace(const std::string& path, const ReadTraceOptions& options = {});
// Whether the content looks like one of these formats. Throws if it cannot be read.
bool is_trace_file(const std::string& path);

// Turns lifetimes into operations, in order of position. At one position, frees come before
// allocations, each in the order of the buffers.
record::MemoryTrace trace_of_lifetimes(std::span<const packing::Lifetime> lifetimes,
                                       const std::string& source);

}  // namespace sluice::replay
