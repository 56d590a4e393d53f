// A fixed team of oneTBB threads, and the one rule of all host kernels: work is cut by shape alone.
//
// A kernel divides its output into pieces. Their number and bounds follow from the shape, never
// from threads(). One thread computes each piece in a fixed order, and no two pieces write the same
// element. Any thread may take any piece without an effect on the bits. Every body runs with IEEE
// arithmetic (ieee_arithmetic.hpp), whatever mode its thread had before.
//
// On a machine with several NUMA nodes the team is divided among them. Each part has an arena of
// its own and is bound to its node while it works (node_binding.hpp). for_blocks_near assigns a
// piece to the node of its memory; a node that has finished its own pieces takes those of others,
// so no thread waits. The pieces of the other kernels read data that many threads read, and share
// one list.
//
// Threads: several threads may call at once. Bodies must not call for_each: a thread that waits
// inside a body could take another piece and find its worker's scratch in use.
#pragma once

#include <oneapi/tbb/task_arena.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/numa.hpp"
#include "kernels/host/node_teams.hpp"

namespace sluice::kernels::host {

// The array from which pieces are cut: the address of element 0 and the bytes per element.
struct ElementMemory {
  const void* data = nullptr;
  std::uint64_t elem_bytes = 0;
};

class Parallel {
 public:
  // Number of logical processors that this process may use.
  static int default_threads();
  // threads: size of the team including the caller; 0: default_threads().
  explicit Parallel(int threads);
  // Uses the nodes of the given machine, whatever this one has (null: one node). threads: >= 1.
  Parallel(int threads, std::shared_ptr<const NumaMachine> machine);

  int threads() const { return threads_; }

  // Calls body(index) once for every index in [0, count) and returns when all are done. Rethrows
  // the first exception of a body; indices that have not begun are then skipped.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const;

  // Number of workers of a call over `count` pieces; multiplies per-worker scratch.
  int workers(std::int64_t count) const;

  // Calls body(index, worker), worker in [0, workers(count)). Two bodies of one call never run at
  // the same time with the same worker, so it can name scratch memory. Indices begin in ascending
  // order.
  void for_each_worker(std::int64_t count,
                       const std::function<void(std::int64_t, int)>& body) const;

  // Calls body(begin, end) over [0, elems) in blocks of `block` elements (the last one shorter).
  void for_blocks(std::int64_t elems, std::int64_t block,
                  const std::function<void(std::int64_t, std::int64_t)>& body) const;
  // As for_blocks, but each block is first offered to the node that holds the page of its first
  // element. If the system does not report pages, nodes take consecutive blocks.
  void for_blocks_near(const ElementMemory& memory, std::int64_t elems, std::int64_t block,
                       const std::function<void(std::int64_t, std::int64_t)>& body) const;

 private:
  // homes: the team of each piece; empty: any team may take any piece.
  void run(std::int64_t count, std::span<const std::size_t> homes,
           const std::function<void(std::int64_t, int)>& body) const;
  void run_teams(std::span<const int> seats,
                 const std::function<void(std::size_t, int)>& run_worker) const;
  std::vector<std::size_t> homes_of(const ElementMemory& memory, std::int64_t count,
                                    std::int64_t block) const;

  int threads_;
  std::shared_ptr<const NumaMachine> machine_;  // null: one node
  std::vector<NodeTeam> teams_;
  // One for each team; none for a single thread. execute() is not const, but several threads may
  // call it.
  std::vector<std::unique_ptr<tbb::task_arena>> arenas_;
  mutable std::atomic<bool> unbound_logged_ = false, pages_unknown_logged_ = false;
};

}  // namespace sluice::kernels::host
