#include "allocator/record/memory_recorder.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::record {

MemoryRecorder::MemoryRecorder(std::size_t capacity_events) : ring_(capacity_events) {
  SLUICE_CHECK(capacity_events > 0);
}

std::uint32_t MemoryRecorder::intern(std::string_view name) {
  const SpinLockHolder lock(mutex_);
  const auto [place, is_new] =
      numbers_.try_emplace(std::string(name), static_cast<std::uint32_t>(names_.size()));
  if (is_new) names_.emplace_back(name);
  return place->second;
}

std::vector<MemoryEvent> MemoryRecorder::events() const {
  const SpinLockHolder lock(mutex_);
  std::vector<MemoryEvent> events;
  const std::size_t count =
      static_cast<std::size_t>(std::min<std::uint64_t>(recorded_count_, ring_.size()));
  events.reserve(count);
  const std::size_t first = recorded_count_ < ring_.size() ? 0 : next_;
  for (std::size_t i = 0; i < count; ++i) events.push_back(ring_[(first + i) % ring_.size()]);
  return events;
}

std::vector<std::string> MemoryRecorder::names() const {
  const SpinLockHolder lock(mutex_);
  return names_;
}

}  // namespace sluice::record
