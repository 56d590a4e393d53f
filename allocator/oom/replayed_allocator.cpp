// Maps the operations of a trace to calls of our allocators.
//
// Each pair of stream and pool in the trace becomes a stream of the allocator. A pending free needs
// a use on another stream whose event has not passed: one more stream, "others", stands for all
// such users. The counting device holds the events of that free back until the trace completes it.
#include "allocator/oom/replayed_allocator.hpp"

#include <algorithm>
#include <string>

namespace sluice::allocator {
namespace {

// The memory of the largest simulated device. Each page of it has a record here, and a record of
// a program that asked for a petabyte by mistake is an honest one.
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 40;

}  // namespace

ReplayedAllocator::ReplayedAllocator(const record::MemoryTrace& trace,
                                     const ReplayedAllocatorOptions& options)
    : trace_(trace),
      device_(std::min(options.capacity_bytes, kMostBytes)),
      ledger_({std::min(options.capacity_bytes, kMostBytes), 0, 0}),
      pages_(device_, ledger_, kPageBytes),
      caching_(std::make_unique<CachingAllocator>(device_, pages_, options.caching)),
      addresses_(trace.allocations.size()),
      holds_(trace.allocations.size()) {
  if (options.planning) {
    planning_ = std::make_unique<PlanningAllocator>(device_, *caching_, *options.planning);
  }
  for (const record::TraceAllocation& allocation : trace.allocations) {
    streams_.ids.try_emplace({allocation.stream, allocation.pool});
  }
  for (auto& [key, id] : streams_.ids) {
    const auto& fixed = options.fixed_streams;
    const bool is_fixed =
        key.second != 0 || std::find(fixed.begin(), fixed.end(), key.first) != fixed.end();
    id = add_stream("stream " + std::to_string(key.first), !is_fixed);
    streams_.names.push_back(key);
  }
  streams_.others = add_stream("others", true);
}

ReplayedAllocator::~ReplayedAllocator() {
  planning_.reset();
  caching_.reset();  // before the streams
}

StreamId ReplayedAllocator::add_stream(const std::string& name, bool movable) {
  streams_.handles.push_back(device_.create_stream(name));
  return planning_ ? planning_->add_stream(*streams_.handles.back(), movable)
                   : caching_->add_stream(*streams_.handles.back(), movable);
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> ReplayedAllocator::stream_name(
    StreamId id) const {
  if (id >= streams_.names.size()) return std::nullopt;
  return streams_.names[id];
}

void ReplayedAllocator::adopt() {
  for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
    const std::vector<record::SnapshotBlock>& blocks = trace_.initial_segments[s].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].state == record::BlockState::kFree) continue;
      const std::uint32_t id = trace_.initial_ids[s][b];
      allocate(id);
      if (blocks[b].state == record::BlockState::kPendingFree) free(id, true);
    }
  }
}

void ReplayedAllocator::follow(const record::TraceOperation& operation) {
  switch (operation.action) {
    case record::TraceAction::kAlloc:
      allocate(operation.allocation);
      break;
    case record::TraceAction::kFree:
      free(operation.allocation, false);
      break;
    case record::TraceAction::kFreePending:
      free(operation.allocation, true);
      break;
    case record::TraceAction::kFreeCompleted:
      complete(operation.allocation);
      break;
    case record::TraceAction::kStep:
      step();
      break;
    case record::TraceAction::kFlush:
      flush();
      break;
    case record::TraceAction::kReleasePool:
      break;
    case record::TraceAction::kRefused:
      allocate(operation.allocation);
      free(operation.allocation, false);
      break;
  }
}

std::byte* ReplayedAllocator::allocate(std::uint32_t id) {
  const record::TraceAllocation& allocation = trace_.allocations[id];
  const std::pair key(allocation.stream, allocation.pool);
  if (streams_.last == streams_.ids.end() || streams_.last->first != key)
    streams_.last = streams_.ids.find(key);
  const AllocationRequest request{allocation.bytes, streams_.last->second, allocation.category,
                                  allocation.name};
  addresses_[id] = planning_ ? planning_->allocate(request) : caching_->allocate(request);
  return addresses_[id];
}

void ReplayedAllocator::free(std::uint32_t id, bool pending) {
  std::byte* const data = std::exchange(addresses_[id], nullptr);
  if (pending && data != nullptr) {
    holds_[id] = std::make_shared<device::CountingDevice::Hold>();
    planning_ ? planning_->record_use(data, streams_.others)
              : caching_->record_use(data, streams_.others);
    device_.hold_events(holds_[id]);
  }
  planning_ ? planning_->free(data) : caching_->free(data);
  if (pending) device_.hold_events(nullptr);
}

void ReplayedAllocator::complete(std::uint32_t id) {
  if (holds_[id] != nullptr) holds_[id]->released = true;
}

void ReplayedAllocator::step() {
  planning_ ? planning_->begin_step() : caching_->begin_step();
}

}  // namespace sluice::allocator
