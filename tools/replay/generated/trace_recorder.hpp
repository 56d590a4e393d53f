// Builds a MemoryTrace through the calls that a caller of an allocator makes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "allocator/record/memory_trace.hpp"

namespace sluice::replay::generated {

using BufferId = std::uint32_t;
inline constexpr BufferId kNoBuffer = UINT32_MAX;

inline constexpr std::uint64_t kComputeStream = 0;
inline constexpr std::uint64_t kCommunicationStream = 1;
inline constexpr std::uint64_t kCopyStream = 2;

class TraceRecorder {
 public:
  TraceRecorder();

  BufferId alloc(std::uint64_t bytes, Category category, std::string_view name,
                 std::uint64_t stream = kComputeStream);
  // The buffer is used on another stream, too: after its free it is pending for `delay` more
  // operations.
  void record_stream(BufferId id, std::uint64_t delay) { delays_[id] = delay; }
  // Does nothing for kNoBuffer. Sets `id` to kNoBuffer.
  void free(BufferId& id);
  // Allocates a buffer and frees it at once.
  void temporary(std::uint64_t bytes, Category category, std::string_view name);
  void step();
  // Completes pending frees, and returns the trace. Live buffers stay live.
  record::MemoryTrace finish();

 private:
  void push(record::TraceAction action, std::uint32_t allocation);
  void append(record::TraceAction action, std::uint32_t allocation);
  std::uint32_t name_index(std::string_view name);

  record::MemoryTrace trace_;
  std::unordered_map<std::string, std::uint32_t> name_indices_;
  std::unordered_map<BufferId, std::uint64_t> delays_;
  std::multimap<std::uint64_t, BufferId> completions_;  // by count of operations
};

}  // namespace sluice::replay::generated
