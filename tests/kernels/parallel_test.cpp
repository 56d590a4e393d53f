// Properties of every team of threads, on one node and shared among the nodes of
// described machines.
#include "kernels/host/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host/elementwise.hpp"
#include "tests/kernels/described_machine.hpp"
#include "tests/support/dtype_array.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sluice::kernels::host {
namespace {

// The parameter: the machine as hwloc describes it; empty: this one.
class ParallelTeam : public ::testing::TestWithParam<std::string> {
 protected:
  static Parallel team(int threads) {
    if (GetParam().empty()) return Parallel(threads);
    const auto machine = std::make_shared<DescribedMachine>(GetParam());
    for (int i = 0; i < 700; ++i) machine->pages.push_back(i % 7 - 2);  // some nowhere
    return {threads, machine};
  }
};

TEST_P(ParallelTeam, RunsEveryPieceOnceAndNamesWorkersApart) {
  for (const int threads : {1, 2, 3, 8}) {
    const Parallel parallel = team(threads);
    for (const std::int64_t count : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(parallel.workers(count)));
      parallel.for_each_worker(count, [&](std::int64_t index, int worker) {
        auto& mine = busy.at(static_cast<std::size_t>(worker));
        EXPECT_EQ(mine.fetch_add(1), 0) << "two pieces share a worker's scratch";
        ++runs.at(static_cast<std::size_t>(index));
        mine.fetch_sub(1);
      });
      std::vector<std::atomic<int>> near(static_cast<std::size_t>(count));
      parallel.for_blocks_near({&count, 0}, count, 1, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin + 1, end);
        ++near.at(static_cast<std::size_t>(begin));
      });
      for (const auto& ran : runs) EXPECT_EQ(ran, 1);
      for (const auto& ran : near) EXPECT_EQ(ran, 1);
    }
  }
}

TEST_P(ParallelTeam, CutsBlocksByShape) {
  std::vector<std::atomic<int>> covered(1003);
  team(3).for_blocks(1003, 100, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(begin % 100, 0);
    EXPECT_LE(end - begin, 100);
    for (std::int64_t i = begin; i < end; ++i) ++covered[static_cast<std::size_t>(i)];
  });
  for (const auto& times : covered) EXPECT_EQ(times, 1);
}

TEST_P(ParallelTeam, RethrowsABodysExceptionAndWorksAfterwards) {
  for (const int threads : {1, 2, 4}) {
    const Parallel parallel = team(threads);
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

TEST_P(ParallelTeam, ServesSeveralCallersAtOnce) {
  const Parallel parallel = team(4);
  std::atomic<std::int64_t> sum{0};
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          parallel.for_each(20, [&](std::int64_t index) { sum += index; });
          parallel.for_blocks_near({&sum, 0}, 20, 1,
                                   [&](std::int64_t begin, std::int64_t) { sum += begin; });
        }
      });
    }
  }
  EXPECT_EQ(sum, 2 * 4 * 50 * 190);
}

INSTANTIATE_TEST_SUITE_P(Machines, ParallelTeam,
                         ::testing::Values("", "node:2 core:1 pu:1", "node:2 core:4 pu:1",
                                           "node:3 core:2 pu:1", "node:5 core:1 pu:1"),
                         [](const ::testing::TestParamInfo<std::string>& machine) {
                           return machine.param.empty()
                                      ? std::string("ThisOne")
                                      : "Nodes" + std::to_string(machine.param[5] - '0') + "Of" +
                                            std::to_string(machine.param[12] - '0');
                         });

TEST(Parallel, HasNoMoreWorkersThanPieces) {
  const Parallel parallel(4);
  EXPECT_EQ(parallel.workers(0), 1);
  EXPECT_EQ(parallel.workers(3), 3);
  EXPECT_EQ(parallel.workers(100), 4);
  EXPECT_GE(Parallel(0).threads(), 1);
}

#if defined(__SSE2__)
// The caller may run with denormals flushed (MXCSR FTZ, DAZ) or with another rounding.
TEST(IeeeArithmetic, KeepsDenormalsWhateverTheCallerHasSet) {
  const std::int64_t elems = 100000;
  std::vector<float> small(static_cast<std::size_t>(elems), 3e-42f);
  const DTypeArray grad(DType::kF32, small);
  for (const int threads : {1, 3}) {
    const Parallel parallel(threads);
    DTypeArray sum = grad;
    const unsigned before = _mm_getcsr();
    const unsigned flushed = before | 0x8040u | 0x2000u;  // FTZ, DAZ, rounding down
    _mm_setcsr(flushed);
    accumulate(parallel, static_cast<float*>(sum.data()), grad.data(), DType::kF32, false, elems);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0xffc0u, flushed & 0xffc0u);
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], 3e-42f + 3e-42f) << i;
  }
}
#endif

}  // namespace
}  // namespace sluice::kernels::host
