// The names of memory actions in files: PyTorch's words, and our own "step" and "flush".
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

inline constexpr std::array<std::string_view, 11> kMemoryActionNames{
    "alloc",        "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",    "segment_unmap",  "step",
    "oom",          "snapshot",       "flush"};

constexpr std::string_view memory_action_name(MemoryAction action) {
  return kMemoryActionNames[static_cast<std::size_t>(action)];
}

constexpr std::optional<MemoryAction> parse_memory_action(std::string_view name) {
  for (std::size_t i = 0; i < kMemoryActionNames.size(); ++i) {
    if (kMemoryActionNames[i] == name) return static_cast<MemoryAction>(i);
  }
  return std::nullopt;
}

}  // namespace sluice::record
