// The rules of RMM's pool_memory_resource over cudaMalloc (rapidsai/rmm: pool_memory_resource,
// stream_ordered_memory_resource, coalescing_free_list): a list of free blocks for each stream,
// ordered by address and searched from end to end for the smallest that fits (best fit); another
// stream's block behind an event; then all lists joined; then growth. By RMM's defaults the pool
// has no maximum size, so it doubles, and tries half as much where the device refuses. Its first
// size, by default half of the device's free memory, is 0 here: an endless device has no half.
// Known differences:
// - RMM has no pending blocks: its callers give back after the last use. complete() gives back.
// - It gives nothing back before it dies: flush() does nothing. (Versions from 2026 give back free
//   upstream blocks under a maximum size, which is not set.)
// - Lists are ordered by the stream's first use, where the original has the address of its event.
// - Private pools mean nothing to it.
// Reserved bytes are those asked of cudaMalloc, as pool_size() counts them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "tools/replay/peers/simulated_device.hpp"

namespace sluice::replay {

class RmmPool final : public ReplayPolicy {
 public:
  RmmPool(const record::MemoryTrace& trace, std::uint64_t capacity_bytes);

  std::optional<std::uint64_t> allocate(std::uint32_t id) override;
  void free(std::uint32_t id, bool pending) override;
  void complete(std::uint32_t id) override;
  void flush() override {}
  PolicyCounters counters() const override { return device_.counters; }

 private:
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // 0: no block
    bool is_head = false;     // begins what cudaMalloc gave: not joined with what precedes it
    bool precedes(const Block& other) const {
      return address + bytes == other.address && !other.is_head;
    }
  };
  class FreeList {
   public:
    void insert(const Block& block);
    Block take_best_fit(std::uint64_t bytes);
    const std::list<Block>& blocks() const { return blocks_; }

   private:
    std::list<Block> blocks_;
  };
  using StreamIndex = std::uint32_t;

  StreamIndex index_of(std::uint64_t stream);
  // The front of `block`; the rest goes to `rest_list`.
  static Block split(Block block, std::uint64_t bytes, FreeList& rest_list);
  Block get_block(std::uint64_t bytes, StreamIndex stream);
  Block take_from_other_stream(std::uint64_t bytes, StreamIndex stream);
  Block merge_other_streams(std::uint64_t bytes, StreamIndex stream, FreeList& list);
  Block grow(std::uint64_t bytes);
  void adopt_initial();

  const record::MemoryTrace& trace_;
  SimulatedDevice device_;
  std::unordered_map<std::uint64_t, StreamIndex> streams_;
  std::map<StreamIndex, FreeList> free_lists_;
  std::set<std::uint64_t> upstream_;  // where blocks of cudaMalloc begin
  std::vector<Block> blocks_by_id_;   // of 0 bytes: not held
};

}  // namespace sluice::replay
