// Properties of a team shared among NUMA nodes alone: real arenas and threads on a described
// machine. parallel_test.cpp tests those of every team.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "kernels/backend/host_kernels.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "tests/contract/update_chunk.hpp"
#include "tests/kernels/described_machine.hpp"

namespace sluice::kernels::host {
namespace {

// Two pieces that wait for each other, so that two threads take one each: the thread bound to the
// node of a piece is the one that takes it, whichever piece comes first in the array.
TEST(NumaParallel, APieceIsTakenByItsNodesThread) {
  if (Parallel::default_threads() < 2) GTEST_SKIP() << "one processor: pieces run one by one";
  for (const std::vector<int>& pages : {std::vector<int>{0, 1}, std::vector<int>{1, 0}}) {
    const auto machine = std::make_shared<DescribedMachine>("node:2 core:1 pu:1");
    machine->pages = pages;
    const Parallel parallel(2, machine);
    std::atomic<int> begun{0};
    std::array<std::atomic<int>, 2> nodes{-1, -1};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    parallel.for_blocks_near({&begun, 0}, 2, 1, [&](std::int64_t begin, std::int64_t) {
      ++begun;
      while (begun < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      nodes.at(static_cast<std::size_t>(begin)) = machine->node_of_this_thread();
    });
    ASSERT_EQ(begun, 2);
    EXPECT_EQ(nodes[0], pages[0]);
    EXPECT_EQ(nodes[1], pages[1]);
  }
}

TEST(NumaParallel, ANodeThatIsDoneTakesTheOthersPieces) {
  const auto machine = std::make_shared<DescribedMachine>("node:2 core:1 pu:1");
  machine->pages.assign(64, 1);
  const Parallel parallel(2, machine);
  std::atomic<int> ran{0};
  parallel.for_blocks_near({&ran, 0}, 64, 1, [&](std::int64_t, std::int64_t) {
    ++ran;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(ran, 64);
}

TEST(NumaParallel, RefusalsAreSaidOnceAndTheWorkIsDone) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  const auto machine = std::make_shared<DescribedMachine>("node:2 core:2 pu:1");
  machine->bind_error = EPERM;
  machine->find_error = EPERM;
  std::atomic<int> ran{0};
  {
    const Parallel parallel(4, machine);
    for (int i = 0; i < 20; ++i) {
      parallel.for_blocks_near({&ran, 0}, 50, 1, [&](std::int64_t, std::int64_t) { ++ran; });
    }
  }
  set_log_sink({});
  EXPECT_EQ(ran, 1000);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("nodes of pages"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("cannot be bound to NUMA node"), std::string::npos) << lines[1];
}

// The caller's own affinity is restored after its work in an arena.
TEST(NumaParallel, ACallerGetsItsProcessorsBack) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  // This machine's first node twice: a real binding to its processors.
  class Twice final : public NumaMachine {
   public:
    Twice() : nodes_{{0, 0, false, {0}}, {1, 0, false, {0}}} {}
    std::span<const NumaNode> nodes() const override { return nodes_; }
    int bind_memory(void*, std::uint64_t, std::size_t) const noexcept override { return 0; }
    int bind_this_thread(std::size_t) const noexcept override {
      cpu_set_t mine;
      if (sched_getaffinity(0, sizeof mine, &mine) != 0) return errno;
      std::size_t first = 0;
      while (CPU_ISSET(first, &mine) == 0) ++first;
      CPU_ZERO(&mine);
      CPU_SET(first, &mine);
      return sched_setaffinity(0, sizeof mine, &mine) == 0 ? 0 : errno;
    }
    int find_pages(std::span<const void* const>, std::span<int>) const noexcept override {
      return EPERM;
    }

   private:
    std::vector<NumaNode> nodes_;
  };
  const Parallel parallel(2, std::make_shared<Twice>());
  std::atomic<int> narrow{0}, ran{0};
  parallel.for_each(100, [&](std::int64_t) {
    cpu_set_t now;
    if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&now) == 1) ++narrow;
    ++ran;
  });
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(narrow, 100);
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// An update, cut among nodes, is the one thread's to the bit.
TEST(NumaParallel, UpdatesAreTheSameWhateverTheNodes) {
  constexpr std::int64_t kElems = 9 * kUpdatePieceElems + 37;
  const auto updated = [&](const Parallel& parallel) {
    testing::UpdateChunk chunk(testing::fp32_formats({}), kElems, {{0, kElems, 0.1f}});
    for (int step = 1; step <= 3; ++step) {
      chunk.draw_grad(static_cast<unsigned>(step));
      adamw(parallel, chunk.formats.options, chunk.buffers(), chunk.segments,
            testing::scalars_of(step));
    }
    return chunk;
  };
  const testing::UpdateChunk plain = updated(Parallel(1));
  for (const char* description : {"node:2 core:1 pu:1", "node:3 core:2 pu:1"}) {
    const auto machine = std::make_shared<DescribedMachine>(description);
    machine->pages = {1, 0, 1, 1, -1, 0, 2, 1, 0, 0};
    EXPECT_TRUE(updated(Parallel(3, machine)) == plain) << description;
  }
}

}  // namespace
}  // namespace sluice::kernels::host
