// A trace from a file of any format that we know, recognised by what it holds.
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
  // Of a PyTorch snapshot; not given: the one with the most events, else the most reserved bytes.
  std::optional<std::int32_t> device;
};

struct ReadTrace {
  record::MemoryTrace trace;
  record::TraceDefects defects;
};

// The formats, with the trace's word for each, and what is read at most:
// - "torch": a pickle of torch.cuda.memory._snapshot(): 4 GiB, 50 million events;
// - "sluice": memory_trace_csv.hpp: 16 GiB, 50 million events;
// - "rmm": rmm_log.hpp: 16 GiB, 25 million lines;
// - "lifetimes": lifetime_csv.hpp: 64 MiB, 100,000 buffers.
// InputError where the file is none of them (saying what it is not, and which are known), where it
// is broken, or where a limit is passed.
ReadTrace read_trace(const std::string& path, const ReadTraceOptions& options = {});

// Buffers by their lifetimes as operations in order of position; at one position what ends is freed
// before what begins is allocated, each in the order of the buffers.
record::MemoryTrace trace_of_lifetimes(std::span<const packing::Lifetime> lifetimes, const std::string& source);

}  // namespace sluice::replay
