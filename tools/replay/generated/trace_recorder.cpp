#include "tools/replay/generated/trace_recorder.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace sluice::replay::generated {

TraceRecorder::TraceRecorder() {
  trace_.format = "generated";
  name_indices_.emplace("", 0);
}

BufferId TraceRecorder::alloc(std::uint64_t bytes, Category category, std::string_view name,
                              std::uint64_t stream) {
  SLUICE_CHECK(trace_.allocations.size() < kNoBuffer);
  const auto id = static_cast<BufferId>(trace_.allocations.size());
  record::TraceAllocation allocation;
  allocation.bytes = std::max<std::uint64_t>(bytes, 1);
  allocation.stream = stream;
  allocation.category = category;
  allocation.name = name_index(name);
  trace_.allocations.push_back(allocation);
  push(record::TraceAction::kAlloc, id);
  return id;
}

void TraceRecorder::free(BufferId& id) {
  if (id == kNoBuffer) return;
  const auto shared = delays_.find(id);
  if (shared == delays_.end()) {
    push(record::TraceAction::kFree, std::exchange(id, kNoBuffer));
    return;
  }
  const std::uint64_t delay = shared->second;
  delays_.erase(shared);
  completions_.emplace(trace_.operations.size() + 1 + delay, id);
  push(record::TraceAction::kFreePending, std::exchange(id, kNoBuffer));
}

void TraceRecorder::temporary(std::uint64_t bytes, Category category, std::string_view name) {
  BufferId id = alloc(bytes, category, name);
  free(id);
}

void TraceRecorder::step() {
  push(record::TraceAction::kStep, 0);
}

record::MemoryTrace TraceRecorder::finish() {
  for (const auto& [due, id] : completions_) append(record::TraceAction::kFreeCompleted, id);
  completions_.clear();
  return std::move(trace_);
}

void TraceRecorder::push(record::TraceAction action, std::uint32_t allocation) {
  append(action, allocation);
  while (!completions_.empty() && completions_.begin()->first <= trace_.operations.size()) {
    const BufferId id = completions_.begin()->second;
    completions_.erase(completions_.begin());
    append(record::TraceAction::kFreeCompleted, id);
  }
}

void TraceRecorder::append(record::TraceAction action, std::uint32_t allocation) {
  trace_.operations.push_back({action, allocation});
}

std::uint32_t TraceRecorder::name_index(std::string_view name) {
  const auto [found, added] =
      name_indices_.emplace(name, static_cast<std::uint32_t>(trace_.names.size()));
  if (added) trace_.names.emplace_back(name);
  return found->second;
}

}  // namespace sluice::replay::generated
