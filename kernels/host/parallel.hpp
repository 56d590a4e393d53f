// A fixed team of oneTBB threads, and the one rule of all host kernels: work is cut by shape alone.
//
// A kernel divides its output into pieces whose number and bounds follow from the shape (never from
// threads()), each piece is computed by one thread in a fixed order, and no two pieces write the
// same element. Which thread takes a piece is free; the bits cannot tell. Every body runs with IEEE
// arithmetic (ieee_arithmetic.hpp), whatever its thread had before.
//
// On a machine with several NUMA nodes the team is shared among them, each part in an arena of its
// own, bound to its node while it works (node_binding.hpp). for_blocks_near gives a piece to the
// node where its memory lies; a node that has done its own pieces takes others', so no thread waits
// for that. The rest of the kernels, whose pieces read what many threads read, go by one list for
// all.
//
// Threads: any number of threads may call at once. Bodies must not call for_each themselves: a
// thread that waits inside a body could pick up another piece and find its worker's scratch in use.
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

// An array that pieces are cut from: the address of element 0, and the bytes from one to the next.
struct ElementMemory {
  const void* data = nullptr;
  std::uint64_t elem_bytes = 0;
};

class Parallel {
 public:
  // The logical processors that this process may run on.
  static int default_threads();
  // threads: size of the team including the caller; 0: default_threads().
  explicit Parallel(int threads);
  // On that machine's nodes, whatever this one has (null: one); threads: at least 1.
  Parallel(int threads, std::shared_ptr<const NumaMachine> machine);

  int threads() const { return threads_; }

  // body(index) for every index in [0, count), each once; returns when all are done. An exception
  // thrown by a body is rethrown here; indices not yet begun are then skipped.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const;

  // How many workers a call over `count` pieces has: what per-worker scratch is multiplied by.
  int workers(std::int64_t count) const;

  // body(index, worker): worker in [0, workers(count)), and no two bodies of one call run at the
  // same time with the same worker: it names scratch memory. Indices are begun in ascending order.
  void for_each_worker(std::int64_t count,
                       const std::function<void(std::int64_t, int)>& body) const;

  // body(begin, end) over [0, elems) in blocks of `block` elements (the last one shorter).
  void for_blocks(std::int64_t elems, std::int64_t block,
                  const std::function<void(std::int64_t, std::int64_t)>& body) const;
  // The same, each block first offered to the node that holds the page of its first element. Where
  // the system does not tell, nodes take consecutive blocks.
  void for_blocks_near(const ElementMemory& memory, std::int64_t elems, std::int64_t block,
                       const std::function<void(std::int64_t, std::int64_t)>& body) const;

 private:
  // homes: the team of each piece; empty: all pieces are everybody's.
  void run(std::int64_t count, std::span<const std::size_t> homes,
           const std::function<void(std::int64_t, int)>& body) const;
  void run_teams(std::span<const int> seats,
                 const std::function<void(std::size_t, int)>& run_worker) const;
  std::vector<std::size_t> homes_of(const ElementMemory& memory, std::int64_t count,
                                    std::int64_t block) const;

  int threads_;
  std::shared_ptr<const NumaMachine> machine_;  // null: one node
  std::vector<NodeTeam> teams_;
  // One for each team; none for one thread. Its execute() is not const, though any number of
  // threads may call it.
  std::vector<std::unique_ptr<tbb::task_arena>> arenas_;
  mutable std::atomic<bool> unbound_logged_ = false, pages_unknown_logged_ = false;
};

}  // namespace sluice::kernels::host
