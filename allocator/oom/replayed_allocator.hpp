// Our allocators driven by a trace, over a device that only counts: for replays, and for trying
// what another cap or setting would have done.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/caching/planning_allocator.hpp"
#include "allocator/record/memory_trace.hpp"
#include "device/counting/counting_device.hpp"

namespace sluice::allocator {

struct ReplayedAllocatorOptions {
  std::uint64_t capacity_bytes = UINT64_MAX;  // of the device, and the ledger's cap
  CachingAllocatorOptions caching;
  std::optional<PlanningAllocatorOptions> planning;  // none: the CachingAllocator alone
  // Streams of the trace whose pages stay. Those of private pools (of graphs) always do.
  std::vector<std::uint64_t> fixed_streams;
};

// The trace must outlive it.
class ReplayedAllocator {
 public:
  ReplayedAllocator(const record::MemoryTrace& trace, const ReplayedAllocatorOptions& options);
  ~ReplayedAllocator();
  ReplayedAllocator(const ReplayedAllocator&) = delete;
  ReplayedAllocator& operator=(const ReplayedAllocator&) = delete;

  // Allocates what was held when the record began, anew: the layout it had there was another's.
  // Throws OutOfMemory.
  void adopt();
  // All but a failing allocation, which throws OutOfMemory. One that failed may be freed.
  void follow(const record::TraceOperation& operation);
  std::byte* allocate(std::uint32_t id);
  void free(std::uint32_t id, bool pending);
  void complete(std::uint32_t id);
  void step();
  void flush() { caching_->release_cached(); }

  device::CountingDevice& device() { return device_; }
  CachingAllocator& caching() { return *caching_; }
  PlanningAllocator* planning() { return planning_.get(); }  // null: none
  // The trace's stream and pool of one of the allocator's streams; none for the stream that stands
  // for all others that use a block.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> stream_name(StreamId id) const;

 private:
  StreamId add_stream(const std::string& name, bool movable);

  const record::MemoryTrace& trace_;
  device::CountingDevice device_;
  Ledger ledger_;
  PagePool pages_;
  std::vector<std::unique_ptr<device::Stream>> streams_;
  std::unique_ptr<CachingAllocator> caching_;
  std::unique_ptr<PlanningAllocator> planning_;
  using StreamIds = std::map<std::pair<std::uint64_t, std::uint64_t>, StreamId>;
  StreamIds ids_;  // by stream and pool
  StreamIds::const_iterator last_ = ids_.end();
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      stream_names_;  // by id, but for others_id_, the last
  StreamId others_id_ = 0;
  std::vector<std::byte*> addresses_;
  std::vector<std::shared_ptr<device::CountingDevice::Hold>> holds_;
};

}  // namespace sluice::allocator
