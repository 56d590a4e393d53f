// Our allocators driven by a trace, over a device that only counts. Replays use it, and so does the
// simulation of other caps and settings.
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
  std::uint64_t capacity_bytes = UINT64_MAX;  // of the device, and the ledger's cap; at most 4 TiB
  CachingAllocatorOptions caching;
  std::optional<PlanningAllocatorOptions> planning;  // if absent, the CachingAllocator alone
  // Streams of the trace that are not movable. Streams of private pools (of graphs) never are.
  std::vector<std::uint64_t> fixed_streams;
};

// The trace must outlive it.
class ReplayedAllocator {
 public:
  ReplayedAllocator(const record::MemoryTrace& trace, const ReplayedAllocatorOptions& options);
  ~ReplayedAllocator();
  ReplayedAllocator(const ReplayedAllocator&) = delete;
  ReplayedAllocator& operator=(const ReplayedAllocator&) = delete;

  // Allocates the blocks that were held when the record began. Their layout in the record is that
  // of another allocator, so it is not kept. Throws OutOfMemory.
  void adopt();
  // Performs one operation; a refused request is served and freed. Memory of a private pool is
  // kept, because its pages may not move. Throws OutOfMemory if a request fails. A free of an
  // allocation that failed, or that was freed before, does nothing.
  void follow(const record::TraceOperation& operation);
  std::byte* allocate(std::uint32_t id);
  void free(std::uint32_t id, bool pending);
  void complete(std::uint32_t id);
  void step();
  void flush() { caching_->release_cached(); }
  // Null if it is not held.
  std::byte* address(std::uint32_t id) const { return addresses_[id]; }

  device::CountingDevice& device() { return device_; }
  CachingAllocator& caching() { return *caching_; }
  PlanningAllocator* planning() { return planning_.get(); }  // null: none
  // The trace's stream and pool for one of the allocator's streams. None for the stream that stands
  // for all other users of a block.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> stream_name(StreamId id) const;

 private:
  StreamId add_stream(const std::string& name, bool movable);

  using StreamKey = std::pair<std::uint64_t, std::uint64_t>;  // stream and pool in the trace
  using StreamIds = std::map<StreamKey, StreamId>;
  struct Streams {
    std::vector<std::unique_ptr<device::Stream>> handles;
    StreamIds ids;
    StreamIds::const_iterator last = ids.end();  // of the last allocation, as a cache
    std::vector<StreamKey> names;                // by id; `others`, the last, has none
    StreamId others = 0;                         // stands for all other users of a block
  };

  const record::MemoryTrace& trace_;
  device::CountingDevice device_;
  Ledger ledger_;
  PagePool pages_;
  Streams streams_;
  std::unique_ptr<CachingAllocator> caching_;
  std::unique_ptr<PlanningAllocator> planning_;
  std::vector<std::byte*> addresses_;
  std::vector<std::shared_ptr<device::CountingDevice::Hold>> holds_;
};

}  // namespace sluice::allocator
