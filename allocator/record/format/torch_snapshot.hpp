// PyTorch's memory snapshots: the pickles that torch.cuda.memory._dump_snapshot writes, of all
// versions since 1.13, read and written. The keys are those of torch/csrc/cuda/Module.cpp and
// memory_snapshot.cpp, the older ones those that torch/cuda/_memory_viz.py still reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/record/format/pickle.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

// One device's part of a snapshot. device: which one; where not given, the one with the most
// events, else with the most reserved bytes. Keys that a file lacks take their defaults, keys and
// actions that are unknown are passed over; an event of an out of memory has device_free as its
// address. Names: TorchFrameNames. InputError with `source` and the place in the pickle where it
// is no snapshot, where a number is not one, or where blocks do not fit in their segment.
MemorySnapshot torch_snapshot(const PickleTree& pickle, const std::string& source,
                              std::optional<std::int32_t> device = std::nullopt);
// A file of at most 4 GiB.
MemorySnapshot read_torch_snapshot(const std::string& path,
                                   std::optional<std::int32_t> device = std::nullopt);

// Writes what torch.cuda.memory._dump_snapshot would: Python's pickle.load and memory_viz read it,
// and torch_snapshot() reads back the same, but for times, which are in microseconds there.
// Categories are an extra key (as torch's own conversion of profiles writes one), and steps an
// action that viewers show as it stands. `sink` gets the bytes in order.
void write_torch_snapshot(const MemorySnapshot& snapshot,
                          std::function<void(std::string_view)> sink);

}  // namespace sluice::record
