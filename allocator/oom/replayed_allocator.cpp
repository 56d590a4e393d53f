#include "allocator/oom/replayed_allocator.hpp"

#include <algorithm>
#include <string>

namespace sluice::allocator {

ReplayedAllocator::ReplayedAllocator(const record::MemoryTrace& trace,
                                     const ReplayedAllocatorOptions& options)
    : trace_(trace),
      device_(options.capacity_bytes),
      ledger_({options.capacity_bytes, 0, 0}),
      pages_(device_, ledger_, kPageBytes),
      caching_(std::make_unique<CachingAllocator>(device_, pages_, options.caching)),
      addresses_(trace.allocations.size()),
      holds_(trace.allocations.size()) {
  if (options.planning) {
    planning_ = std::make_unique<PlanningAllocator>(device_, *caching_, *options.planning);
  }
  for (const record::TraceAllocation& allocation : trace.allocations) {
    ids_.try_emplace({allocation.stream, allocation.pool});
  }
  for (auto& [key, id] : ids_) {
    const auto& fixed = options.fixed_streams;
    const bool is_fixed =
        key.second != 0 || std::find(fixed.begin(), fixed.end(), key.first) != fixed.end();
    id = add_stream("stream " + std::to_string(key.first), !is_fixed);
    stream_names_.push_back(key);
  }
  others_id_ = add_stream("others", true);
}

ReplayedAllocator::~ReplayedAllocator() {
  planning_.reset();
  caching_.reset();  // before the streams
}

StreamId ReplayedAllocator::add_stream(const std::string& name, bool movable) {
  streams_.push_back(device_.create_stream(name));
  return planning_ ? planning_->add_stream(*streams_.back(), movable)
                   : caching_->add_stream(*streams_.back(), movable);
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> ReplayedAllocator::stream_name(
    StreamId id) const {
  if (id >= stream_names_.size()) return std::nullopt;
  return stream_names_[id];
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
  }
}

std::byte* ReplayedAllocator::allocate(std::uint32_t id) {
  const record::TraceAllocation& allocation = trace_.allocations[id];
  const std::pair key(allocation.stream, allocation.pool);
  if (last_ == ids_.end() || last_->first != key) last_ = ids_.find(key);
  const AllocationRequest request{allocation.bytes, last_->second, allocation.category,
                                  allocation.name};
  addresses_[id] = planning_ ? planning_->allocate(request) : caching_->allocate(request);
  return addresses_[id];
}

void ReplayedAllocator::free(std::uint32_t id, bool pending) {
  std::byte* const data = std::exchange(addresses_[id], nullptr);
  if (pending && data != nullptr) {
    holds_[id] = std::make_shared<device::CountingDevice::Hold>();
    planning_ ? planning_->record_use(data, others_id_) : caching_->record_use(data, others_id_);
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
