#include "kernels/host/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sluice::host {
namespace {

TEST(Parallel, RunsEveryPieceOnceAndNamesWorkersApart) {
  for (const int threads : {1, 2, 3, 8}) {
    const Parallel parallel(threads);
    for (const std::int64_t count : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(parallel.workers(count)));
      parallel.for_each_worker(count, [&](std::int64_t index, int worker) {
        auto& mine = busy.at(static_cast<std::size_t>(worker));
        EXPECT_EQ(mine.fetch_add(1), 0) << "two pieces share a worker's scratch";
        ++runs.at(static_cast<std::size_t>(index));
        mine.fetch_sub(1);
      });
      for (const auto& ran : runs) EXPECT_EQ(ran, 1);
    }
  }
}

TEST(Parallel, HasNoMoreWorkersThanPieces) {
  const Parallel parallel(4);
  EXPECT_EQ(parallel.workers(0), 1);
  EXPECT_EQ(parallel.workers(3), 3);
  EXPECT_EQ(parallel.workers(100), 4);
  EXPECT_GE(Parallel(0).threads(), 1);
}

TEST(Parallel, CutsBlocksByShape) {
  std::vector<std::atomic<int>> covered(1003);
  Parallel(3).for_blocks(1003, 100, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(begin % 100, 0);
    EXPECT_LE(end - begin, 100);
    for (std::int64_t i = begin; i < end; ++i) ++covered[static_cast<std::size_t>(i)];
  });
  for (const auto& times : covered) EXPECT_EQ(times, 1);
}

TEST(Parallel, HandsOnWhatABodyThrowsAndWorksAfterwards) {
  for (const int threads : {1, 2}) {
    const Parallel parallel(threads);
    std::atomic<int> begun{0};
    const auto fail = [&](std::int64_t index) {
      ++begun;
      if (index == 3) throw std::runtime_error("piece 3");
    };
    EXPECT_THROW(parallel.for_each(1'000'000, fail), std::runtime_error);
    EXPECT_LT(begun, 1'000'000);
    std::atomic<int> ran{0};
    parallel.for_each(10, [&](std::int64_t) { ++ran; });
    EXPECT_EQ(ran, 10);
  }
}

TEST(Parallel, ServesSeveralCallersAtOnce) {
  const Parallel parallel(2);
  std::atomic<std::int64_t> sum{0};
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          parallel.for_each(20, [&](std::int64_t index) { sum += index; });
        }
      });
    }
  }
  EXPECT_EQ(sum, 4 * 50 * 190);
}

}  // namespace
}  // namespace sluice::host
