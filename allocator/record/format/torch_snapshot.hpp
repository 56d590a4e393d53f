// PyTorch's memory snapshots: the pickles that torch.cuda.memory._dump_snapshot writes, of all
// versions since 1.13, read and written. The keys are those of torch/csrc/cuda/Module.cpp and
// torch/csrc/cuda/memory_snapshot.cpp, the older ones those that torch/cuda/_memory_viz.py still
// reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/record/format/pickle.hpp"
#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

// Reads one device's part of a snapshot: that of `device`, or of the device with the most events,
// or without events with the most reserved bytes. Keys that a file lacks take their defaults.
// Unknown keys and actions are skipped. An out-of-memory event has device_free as its address.
// Private pools are numbered from 1 on, segments' first. The names are those of TorchFrameNames.
// Throws InputError, with `source` and the place in the pickle, if it is not a snapshot, if a
// number is missing, or if blocks do not fit in their segment.
MemorySnapshot torch_snapshot(const PickleTree& pickle, const std::string& source,
                              std::optional<std::int32_t> device = std::nullopt);
// Reads a snapshot from a file of at most 4 GiB.
MemorySnapshot read_torch_snapshot(const std::string& path,
                                   std::optional<std::int32_t> device = std::nullopt);

// Writes the same format as torch.cuda.memory._dump_snapshot. Python's pickle.load and memory_viz
// read it, and torch_snapshot() reads it back, except that times are in microseconds. Categories
// are an extra key, as in torch's own conversion of profiles. Steps are an action, which viewers
// show as it is. `sink` receives the bytes in order.
void write_torch_snapshot(const MemorySnapshot& snapshot,
                          std::function<void(std::string_view)> sink);

}  // namespace sluice::record
