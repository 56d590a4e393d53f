// The rules of TensorFlow's best-fit-with-coalescing allocator (xla/tsl/framework/
// bfc_allocator.cc) as its GPU build sets it up, with allow_growth: memory_limit is the device's
// capacity, fragmentation_fraction 0, garbage_collection on, regions not joined (its cudaMalloc
// sub-allocator does not support that), no spatial partitioning, no timing counter. It knows no
// streams: a chunk that is free is anyone's, because its callers keep to one compute stream or
// wait themselves; a replay on several streams counts no waits for it. Known differences:
// - A pending chunk is in use until complete(). Where the original would wait for deallocations
//   (AllocatorRetry, 10 seconds), pending ones are waited for; others cannot come.
// - It cannot be asked to give back its cache: flush() does nothing. Garbage collection, which
//   gives back all free regions when memory runs out, counts as a flush.
// - Private pools mean nothing to it.
// - Bins are std::set where the original has absl::btree_set; chunks are found by a dense index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "tools/replay/peers/simulated_device.hpp"

namespace sluice::replay {

class BfcAllocator final : public ReplayPolicy {
 public:
  BfcAllocator(const record::MemoryTrace& trace, std::uint64_t capacity_bytes);
  BfcAllocator(BfcAllocator&&) = delete;  // the bins' order refers to this

  std::optional<std::uint64_t> allocate(std::uint32_t id) override;
  void free(std::uint32_t id, bool pending) override;
  void complete(std::uint32_t id) override;
  void flush() override {}
  PolicyCounters counters() const override { return device_.counters; }

 private:
  using Handle = std::uint32_t;
  static constexpr Handle kNone = UINT32_MAX;
  static constexpr std::size_t kBins = 21;  // bin b: from 256 << b; the last: from 256 MiB

  struct Chunk {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Handle prev = kNone;
    Handle next = kNone;
    bool in_use = false;
  };
  struct Region {
    std::uint64_t address;
    std::uint64_t bytes;
    Handle first;  // a chunk at a region's start is merged into, never away
  };
  struct Order {
    const BfcAllocator* allocator;
    bool operator()(Handle a, Handle b) const;
  };

  static std::size_t bin_of(std::uint64_t bytes);
  Handle make_chunk(const Chunk& value);
  void insert_free(Handle handle);
  void remove_free(Handle handle);
  // A free chunk taken from its bin for `bytes`, or kNone.
  Handle find_chunk(std::uint64_t bytes);
  void split(Handle handle, std::uint64_t bytes);
  void merge(Handle first, Handle second);
  void free_chunk(Handle handle);
  bool extend(std::uint64_t bytes);
  bool deallocate_free_regions(std::uint64_t bytes);
  Handle allocate_chunk(std::uint64_t bytes);
  bool wait_for_pending();
  void adopt_initial();

  const record::MemoryTrace& trace_;
  SimulatedDevice device_;
  std::uint64_t next_region_bytes_;
  std::vector<Chunk> chunks_;
  std::vector<Handle> spare_;
  std::vector<Region> regions_;
  std::vector<std::set<Handle, Order>> bins_;
  std::vector<Handle> chunks_by_id_;
  std::vector<std::uint32_t> pending_ids_;  // in order of free; some have completed since
};

}  // namespace sluice::replay
