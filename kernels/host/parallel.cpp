#include "kernels/host/parallel.hpp"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>

#include <algorithm>

#include "base/error.hpp"

namespace sluice::host {

Parallel::Parallel(int threads)
    : threads_(threads == 0 ? tbb::info::default_concurrency() : threads), arena_(threads_, 1) {
  SLUICE_CHECK(threads >= 0);
}

void Parallel::for_each_worker(std::int64_t count,
                               const std::function<void(std::int64_t, int)>& body) const {
  if (count <= 1 || threads_ == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  arena_.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, count, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          const int worker = tbb::this_task_arena::current_thread_index();
          for (std::int64_t i = range.begin(); i != range.end(); ++i) body(i, worker);
        },
        tbb::simple_partitioner());
  });
}

void Parallel::for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const {
  for_each_worker(count, [&body](std::int64_t index, int) { body(index); });
}

void Parallel::for_blocks(std::int64_t elems, std::int64_t block,
                          const std::function<void(std::int64_t, std::int64_t)>& body) const {
  SLUICE_CHECK(block > 0);
  for_each((elems + block - 1) / block,
           [&](std::int64_t index) { body(index * block, std::min(elems, (index + 1) * block)); });
}

}  // namespace sluice::host
