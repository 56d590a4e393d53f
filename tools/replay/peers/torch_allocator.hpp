// The rules of PyTorch's CUDACachingAllocator (DeviceCachingAllocator of c10/cuda/
// CUDACachingAllocator.cpp), with expandable_segments off or on. Other settings are the trace's.
//
// On random traces, this replica gave the same addresses and reserved bytes as the library of
// release 2.6.0, run over a CUDA runtime that only counts. So it did for 2.15.0 with fixed
// segments, except for two changes that it does not follow: of free blocks of one size, 2.15.0
// takes that of the oldest segment, not that of the lowest address (without recorded addresses
// these are the same, because simulated ones go up); and it also frees its cache under a capture.
// Known differences:
// - A block becomes free at complete(), not at the next malloc; no request comes between. The
//   events of one stream do not delay those after them, because the trace does not name the stream.
// - An allocation in a private pool is assumed to be made under a capture, so it never makes the
//   allocator synchronise. Segments of private pools stay until the record frees them.
// - max_non_split_rounding_mb and large_segment_size_mb have their defaults (both 20 MiB), and
//   garbage_collection_threshold is off, because traces do not carry these settings.
// - With expandable segments and max_split_size, release_available_cached_blocks skips expandable
//   blocks; some older versions fail there with an assertion.
// - The original also keeps hash tables of live blocks; a dense index replaces them here.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "tools/replay/peers/simulated_device.hpp"
#include "tools/replay/peers/torch_blocks.hpp"
#include "tools/replay/peers/torch_sizes.hpp"

namespace sluice::replay {

enum class TorchSegments : std::uint8_t { kFixed, kExpandable };

class TorchAllocator final : public ReplayPolicy {
 public:
  TorchAllocator(const record::MemoryTrace& trace, std::uint64_t capacity_bytes,
                 TorchSegments segments);

  std::optional<std::uint64_t> allocate(std::uint32_t id) override;
  void free(std::uint32_t id, bool pending) override;
  void complete(std::uint32_t id) override;
  void flush() override { release_cached(); }
  void release_pool(std::uint64_t pool) override;
  std::uint64_t initial_address(std::uint32_t id) const override {
    return blocks_by_id_[id]->address;
  }
  // A flush is a call of release_cached_blocks. Synchronisations are the flushes, as
  // num_sync_all_streams counts them, frees of single blocks when memory runs out, and unmappings.
  PolicyCounters counters() const override { return device_.counters; }

 private:
  struct Request {
    std::uint64_t stream;
    std::uint64_t bytes;           // rounded
    std::uint64_t wanted_address;  // of a new segment; 0 for any
    TorchPool* pool;
  };
  struct PoolPair {
    TorchPool small;
    TorchPool large;
  };

  // torch_allocator.cpp
  TorchPool* pool_of(std::uint64_t pool, bool is_small);
  TorchBlock* find_free(const Request& request);
  TorchBlock* obtain(const Request& request);
  bool should_split(const TorchBlock& block, std::uint64_t bytes) const;
  TorchBlock* split(TorchBlock* block, std::uint64_t bytes);
  void free_block(TorchBlock* block);
  bool try_merge(TorchBlock* into, TorchBlock* from);

  // torch_release.cpp
  bool release_available(const Request& request);
  void release_cached();
  void complete_all_pending();
  void release_blocks(TorchPool& pool);
  void release_block(TorchBlock* block);

  // torch_expandable.cpp
  TorchBlock* find_expandable(const Request& request);
  bool map_block(TorchBlock* block, std::uint64_t bytes);
  TorchBlock* obtain_expandable(const Request& request);
  void unmap_block(TorchBlock* block);
  void release_segment(TorchBlock* block);
  std::uint64_t address_space_bytes(std::uint64_t page_bytes) const;

  // torch_initial.cpp
  struct InitialRange;
  void adopt_initial();
  void adopt_range(const InitialRange& range);
  TorchBlock* append_block(TorchBlock* last, const TorchBlock& value);
  TorchBlock* append_segment(TorchBlock* last, std::size_t index, const TorchBlock& like);

  const record::MemoryTrace& trace_;
  SimulatedDevice device_;
  TorchRounding round_;
  TorchSegments segments_;
  PoolPair pools_;
  std::map<std::uint64_t, PoolPair> private_pools_;
  TorchBlockStore store_;
  std::deque<ExpandableSegment> expandable_;
  std::vector<TorchBlock*> blocks_by_id_;   // null if not held
  std::vector<std::uint32_t> pending_ids_;  // in order of free; some have completed since
};

}  // namespace sluice::replay
