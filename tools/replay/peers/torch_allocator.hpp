// The rules of PyTorch's CUDACachingAllocator (DeviceCachingAllocator of c10/cuda/
// CUDACachingAllocator.cpp), with expandable_segments off or on; other settings are the trace's.
// Random traces gave the addresses and reserved bytes of the 2.6.0 release's own library, run over
// a CUDA runtime that only counts. So did 2.15.0's with fixed segments, but for two changes that
// are not followed here: of free blocks of one size it takes the oldest segment's, not the one of
// the lowest address (the same where the record gives no addresses, as simulated ones go up), and
// it gives back its cache under a capture too. Known differences:
// - A block whose events are done is free at complete(), not at the next malloc: no request comes
//   between. One stream's events do not hold up those behind them: the trace names no such stream.
// - An allocation in a private pool is taken to be made under a capture, so it never makes the
//   allocator synchronise; blocks of private pools stay, for no record says when a graph died.
// - max_non_split_rounding_mb and large_segment_size_mb have their defaults (20 MiB both), and
//   garbage_collection_threshold is off, for traces do not carry them.
// - With expandable segments and max_split_size, release_available_cached_blocks passes over
//   expandable blocks; some older versions stop there with an assertion.
// - The original also keeps hash tables of live blocks, which a dense index replaces here.
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
  TorchAllocator(const record::MemoryTrace& trace, std::uint64_t capacity_bytes, TorchSegments segments);

  std::optional<std::uint64_t> allocate(std::uint32_t id) override;
  void free(std::uint32_t id, bool pending) override;
  void complete(std::uint32_t id) override;
  void flush() override { release_cached(); }
  // flushes: calls of release_cached_blocks. synchronisations: those, as num_sync_all_streams
  // counts them, the freeing of single blocks when memory runs out, and each unmapping.
  PolicyCounters counters() const override { return device_.counters; }

 private:
  struct Request {
    std::uint64_t stream;
    std::uint64_t bytes;           // rounded
    std::uint64_t wanted_address;  // of a new segment; 0: any
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
  std::vector<TorchBlock*> blocks_by_id_;   // null: not held
  std::vector<std::uint32_t> pending_ids_;  // in order of free; some have completed since
};

}  // namespace sluice::replay
