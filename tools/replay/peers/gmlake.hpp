// The rules of GMLake (Guo et al., "GMLake: Efficient and Transparent GPU Memory Defragmentation
// for Large-scale DNN Training with Virtual Memory Stitching", ASPLOS 2024) as its code has them
// (intelligent-machine-learning/glake, GMLake/src/CUDACachingAllocator.cpp, over PyTorch 1.13).
// Above 1 MiB, segments are made of 2 MiB handles, sizes are multiples of 2 MiB, and the paper's
// states follow in this order: a free primitive block, the best fit, split where 2 MiB or more
// remain (S1, S2); a free stitched block of at most ten times the size (S1); free primitive blocks
// mapped behind one another, largest first, from 512 MiB on (S3, fragLimit); new handles (S4);
// after giving back what is free as a whole, both once more (S5). Smaller requests go PyTorch's
// way. Its settings have their defaults: fragLimit 512 MiB, reuseLimit 10, defragLevel 0, reAlloc
// off, autoGC 1000 GiB; so have PyTorch's below it (no max_split_size, no roundup divisions).
// Known differences:
// - Events are done when complete() says so, as in torch_allocator.hpp, which has the rest.
// - Private pools are the default pool.
// - What the trace holds at its beginning consists of no handles: used, but never stitched.
// remaps: handles mapped into stitched blocks, beside their first mapping, which stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "tools/replay/peers/lake_blocks.hpp"
#include "tools/replay/peers/simulated_device.hpp"

namespace sluice::replay {

class GmLake final : public ReplayPolicy {
 public:
  GmLake(const record::MemoryTrace& trace, std::uint64_t capacity_bytes);

  std::optional<std::uint64_t> allocate(std::uint32_t id) override;
  void free(std::uint32_t id, bool pending) override;
  void complete(std::uint32_t id) override;
  void flush() override;
  PolicyCounters counters() const override { return device_.counters; }

 private:
  struct Request {
    std::uint64_t stream;
    std::uint64_t bytes;  // rounded
    bool is_small;
  };
  // What an allocation holds: one of the two, or nothing.
  struct Holding {
    LakeBlock* block = nullptr;
    StitchedBlock* stitched = nullptr;
    explicit operator bool() const { return block != nullptr || stitched != nullptr; }
  };

  // gmlake.cpp
  Holding find_free(const Request& request);
  Holding obtain(const Request& request);
  Holding claim(LakeBlock* block, std::uint64_t bytes);
  LakeBlock* split(LakeBlock* block, std::uint64_t bytes);
  void give_back(const Holding& holding);
  void free_block(LakeBlock* block);
  void try_merge(LakeBlock* into, LakeBlock* from);
  void release_cached();
  void release_blocks(LakePool& pool);
  void release_block(LakeBlock* block);
  void adopt_initial();

  // gmlake_stitching.cpp
  Holding take_stitched(const Request& request);
  Holding stitch(const Request& request);
  void cut_by_use(LakeBlock* block);
  void use_page(LakePage& page, const StitchedBlock* by);
  void leave_page(LakePage& page, const StitchedBlock* by);
  void free_stitched(StitchedBlock* stitched);
  void destroy(StitchedBlock* stitched);
  void detach_pages(LakeBlock* block);
  void collect_stitched();

  const record::MemoryTrace& trace_;
  SimulatedDevice device_;
  LakePool small_;
  LakePool large_;
  LakeBlockStore store_;
  std::map<std::uint64_t, std::vector<LakePage>> pages_;  // of a segment, by its address
  std::list<StitchedBlock> stitched_;
  StitchedPool free_stitched_;              // those whose pages are all free
  std::uint64_t stitched_bytes_ = 0;        // made since the last collection
  std::vector<Holding> holdings_;           // by id
  std::vector<bool> is_pending_;            // by id
  std::vector<std::uint32_t> pending_ids_;  // in order of free; some have completed since
};

}  // namespace sluice::replay
