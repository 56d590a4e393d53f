#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/replay/counting_device.hpp"
#include "tools/replay/own_policies.hpp"

namespace sluice {
namespace {

class DynamicPolicy final : public ReplayPolicy {
 public:
  DynamicPolicy(const MemoryTrace& trace, std::uint64_t capacity_bytes,
                const CachingAllocatorOptions& options)
      : trace_(trace),
        device_(capacity_bytes),
        pages_(device_, ledger_, kPageBytes),
        addresses_(trace.allocations.size()),
        holds_(trace.allocations.size()) {
    allocator_ = std::make_unique<CachingAllocator>(device_, pages_, options);
    others_ = device_.create_stream("others");
    others_id_ = allocator_->add_stream(*others_);
    adopt();
  }

  std::optional<std::uint64_t> allocate(std::uint32_t id) override {
    const TraceAllocation& allocation = trace_.allocations[id];
    try {
      addresses_[id] =
          allocator_->allocate({allocation.bytes, stream_of(allocation.stream, allocation.pool),
                                allocation.category, allocation.name});
    } catch (const OutOfMemory&) {
      return std::nullopt;
    }
    return reinterpret_cast<std::uint64_t>(addresses_[id]);
  }

  void free(std::uint32_t id, bool pending) override {
    std::byte* const data = std::exchange(addresses_[id], nullptr);
    if (pending && data != nullptr) {
      holds_[id] = std::make_shared<CountingDevice::Hold>();
      allocator_->record_use(data, others_id_);
      device_.hold_events(holds_[id]);
    }
    allocator_->free(data);
    device_.hold_events(nullptr);
  }

  void complete(std::uint32_t id) override {
    if (holds_[id] != nullptr) holds_[id]->released = true;
  }

  void step() override { allocator_->begin_step(); }
  void flush() override { allocator_->release_cached(); }

  PolicyCounters counters() const override {
    const CachingAllocatorStatistics statistics = allocator_->statistics();
    PolicyCounters counters;
    counters.reserved_bytes = statistics.reserved_bytes;
    counters.peak_reserved_bytes = statistics.peak_reserved_bytes;
    counters.driver_allocations = device_.counters().allocation_calls;
    counters.flushes = statistics.flushes;
    counters.remaps = statistics.remaps;
    counters.synchronisations = statistics.synchronisations;
    counters.event_waits = statistics.event_waits;
    return counters;
  }

 private:
  // A private pool (of a graph) shares with no other: a stream of its own.
  StreamId stream_of(std::uint64_t stream, std::uint64_t pool) {
    const auto [place, is_new] = streams_.try_emplace(std::pair(stream, pool));
    if (is_new) {
      place->second.first = device_.create_stream("stream " + std::to_string(stream));
      place->second.second = allocator_->add_stream(*place->second.first, pool == 0);
    }
    return place->second.second;
  }

  // What was held when the record began is allocated anew: the layout it had there was another's.
  void adopt() {
    for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
      const std::vector<SnapshotBlock>& blocks = trace_.initial_segments[s].blocks;
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        const std::uint32_t id = trace_.initial_ids[s][b];
        if (blocks[b].state == BlockState::kFree || !allocate(id)) continue;
        if (blocks[b].state == BlockState::kPendingFree) free(id, true);
      }
    }
  }

  const MemoryTrace& trace_;
  CountingDevice device_;
  Ledger ledger_{{UINT64_MAX, 0, 0}};
  PagePool pages_;
  std::unique_ptr<Stream> others_;
  StreamId others_id_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<std::unique_ptr<Stream>, StreamId>>
      streams_;
  std::unique_ptr<CachingAllocator> allocator_;  // after the streams: it goes before them
  std::vector<std::byte*> addresses_;
  std::vector<std::shared_ptr<CountingDevice::Hold>> holds_;
};

}  // namespace

std::unique_ptr<ReplayPolicy> make_dynamic_policy(const MemoryTrace& trace,
                                                  std::uint64_t capacity_bytes,
                                                  CachingAllocatorOptions options) {
  return std::make_unique<DynamicPolicy>(trace, capacity_bytes, options);
}

}  // namespace sluice
