// A fixed team of oneTBB threads, and the one rule of all host kernels: work is cut by shape alone.
//
// A kernel divides its output into pieces whose number and bounds follow from the shape (never from
// threads()), each piece is computed by one thread in a fixed order, and no two pieces write the
// same element. Which thread takes a piece is free; the bits cannot tell. Every body runs with IEEE
// arithmetic (ieee_arithmetic.hpp), whatever its thread had before.
//
// Threads: any number of threads may call at once. Bodies must not call for_each themselves: a
// thread that waits inside a body could pick up another piece and find its worker's scratch in use.
#pragma once

#include <oneapi/tbb/task_arena.h>

#include <cstdint>
#include <functional>

namespace sluice::host {

class Parallel {
 public:
  // The logical processors that this process may run on.
  static int default_threads();
  // threads: size of the team including the caller; 0: default_threads().
  explicit Parallel(int threads);

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

 private:
  int threads_;
  // execute() is not const, though any number of threads may call it.
  mutable tbb::task_arena arena_;
};

}  // namespace sluice::host
