// The caching allocator under several threads: streams of their own and shared ones, blocks handed
// from one to another, threads that end, and others that ask for the state meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tests/allocator/caching/allocator_bench.hpp"
#include "tests/allocator/caching/stress_operations.hpp"
#include "tests/support/snapshot_sums.hpp"

namespace sluice::allocator {
namespace {

// Blocks on their way from one thread to another.
class Handover {
 public:
  void put(const MarkedBlock& block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(block);
  }
  std::optional<MarkedBlock> take() {
    const std::lock_guard lock(mutex_);
    if (blocks_.empty()) return std::nullopt;
    const MarkedBlock block = blocks_.front();
    blocks_.pop_front();
    return block;
  }

 private:
  std::mutex mutex_;
  std::deque<MarkedBlock> blocks_;  // guarded by mutex_
};

struct Shared {
  AllocatorBench& bench;
  Handover& handover;
  std::atomic<std::uint64_t>& out_of_memory_count;
};

void run_thread(const Shared& shared, std::uint64_t number, std::vector<StreamId> streams,
                std::uint64_t operation_count) {
  const CounterRng rng(number, stream_of("caching_allocator_threads_test"));
  std::uint64_t n = 0;
  std::vector<MarkedBlock> live;
  const auto free_one = [&](std::size_t which) {
    shared.bench.free(live[which]);
    live[which] = live.back();
    live.pop_back();
  };
  for (std::uint64_t step = 0; step < operation_count; ++step) {
    const StreamId stream = streams[rng.below(n++, streams.size())];
    const std::uint64_t kind = rng.below(n++, 100);
    if (kind < 50) {
      // Mostly small, for the caches' sake.
      const std::uint64_t bytes =
          rng.below(n++, 3) == 0 ? random_bytes(rng, n) : 1 + rng.below(n++, 8 * kKiB);
      try {
        live.push_back(shared.bench.allocate(bytes, stream,
                                             static_cast<Category>(rng.below(n++, kCategoryCount)),
                                             number << 40U | step));
      } catch (const OutOfMemory&) {
        ++shared.out_of_memory_count;
        while (live.size() > 2) free_one(rng.below(n++, live.size()));
        while (const auto block = shared.handover.take()) shared.bench.free(*block);
      }
    } else if (kind < 85) {
      if (!live.empty()) free_one(rng.below(n++, live.size()));
    } else if (kind < 91) {
      if (live.empty()) continue;
      shared.handover.put(live.back());
      live.pop_back();
    } else if (kind < 97) {
      if (const auto block = shared.handover.take()) live.push_back(*block);
    } else {
      if (!live.empty()) shared.bench.check_on(stream, live[rng.below(n++, live.size())]);
    }
    if (live.size() > 40) free_one(rng.below(n++, live.size()));
  }
  for (const MarkedBlock& block : live) shared.handover.put(block);  // the next thread frees them
}

// Sums that hold at every moment, while other threads work.
void expect_sound(AllocatorBench& bench) {
  const CachingAllocatorStatistics statistics = bench.allocator().statistics();
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 40U;  // above: a sum went below zero
  EXPECT_LT(statistics.live_bytes, kLimit);
  EXPECT_LT(statistics.used_bytes, kLimit);
  for (const std::uint64_t bytes : statistics.live_by_category) EXPECT_LT(bytes, kLimit);
  EXPECT_EQ(statistics.used_bytes + statistics.pending_bytes + statistics.cached_bytes +
                statistics.free_bytes,
            statistics.reserved_bytes);
  EXPECT_LE(statistics.reserved_bytes, bench.cap_bytes());
  EXPECT_LE(testing::sums_of(bench.allocator().snapshot().segments).bytes, bench.cap_bytes());
}

class CachingAllocatorOnThreads : public ::testing::TestWithParam<DeviceUnderTest> {};

TEST_P(CachingAllocatorOnThreads, AnySequenceKeepsContentsOrderAndBudget) {
  if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  constexpr std::uint64_t kThreadCount = 4;
  constexpr std::uint64_t kRoundCount = 3;  // threads end, others inherit their caches
  const std::uint64_t operation_count = stress_operations(12000);
  record::MemoryRecorder recorder(4096);
  CachingAllocatorOptions options{
      .remap_budget_pages = 256, .thread_cache_bytes = kMiB, .segment_bytes = 64 * kPageBytes};
  AllocatorBench one(40, options, GetParam());
  options.recorder = &recorder;  // of the other
  AllocatorBench other(24, options, GetParam());
  Handover handovers[2];
  std::atomic<std::uint64_t> out_of_memory_count = 0;
  // One for each thread, and one for all.
  for (AllocatorBench* bench : {&one, &other}) {
    for (std::uint64_t i = 0; i <= kThreadCount; ++i) bench->add_stream();
  }
  for (std::uint64_t round = 0; round < kRoundCount; ++round) {
    std::atomic<bool> done = false;
    std::thread observer([&] {
      for (std::uint64_t i = 0; !done; ++i) {
        AllocatorBench& bench = i % 2 == 0 ? one : other;
        expect_sound(bench);
        if (i % 16 < 2) bench.allocator().release_cached();
        if (i % 8 < 2) bench.allocator().begin_step();
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    });
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < kThreadCount; ++i) {
      threads.emplace_back([&, i] {
        const std::vector<StreamId> streams{static_cast<StreamId>(i), kThreadCount};
        // Both allocators by turns: each thread has a cache of each.
        const std::uint64_t count = operation_count / kThreadCount / kRoundCount / 8;
        for (std::uint64_t part = 0; part < 8; ++part) {
          run_thread({part % 2 == 0 ? one : other, handovers[part % 2], out_of_memory_count},
                     (round * kThreadCount + i) * 8 + part + 1, streams, count);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    done = true;
    observer.join();
    one.allocator().check_invariants();
    other.allocator().check_invariants();
  }
  EXPECT_GT(out_of_memory_count, 0u);
  EXPECT_GT(one.allocator().statistics().cache_hits, 0u);
  EXPECT_GT(one.allocator().statistics().remaps, 0u);
  EXPECT_GT(one.allocator().statistics().event_waits, 0u);
  AllocatorBench* const benches[]{&one, &other};
  for (int i = 0; i < 2; ++i) {
    while (const auto block = handovers[i].take()) benches[i]->free(*block);
    benches[i]->expect_all_returned();
  }
}

INSTANTIATE_TEST_SUITE_P(On, CachingAllocatorOnThreads, ::testing::ValuesIn(devices_under_test()),
                         ::testing::PrintToStringParamName());

TEST(CachingAllocatorThreads, StreamsMayBeAddedWhileOthersAllocate) {
  AllocatorBench bench(16, {.segment_bytes = 32 * kPageBytes});
  const StreamId a = bench.add_stream();
  const auto inner = device::make_host_device({.capacity_bytes = kPageBytes});
  std::vector<std::unique_ptr<device::Stream>> streams;
  for (int i = 0; i < 40; ++i) streams.push_back(inner->create_stream("late"));
  std::atomic<bool> done = false;
  std::thread thread([&] {
    for (std::uint64_t i = 1; !done; ++i) {
      bench.free(bench.allocate(i % 3 * kMiB + i % 999 + 1, a, Category::kExternal, i));
    }
  });
  for (const auto& stream : streams) {
    const StreamId id = bench.allocator().add_stream(*stream);
    bench.allocator().free(bench.allocator().allocate({3000, id}));
  }
  done = true;
  thread.join();
  bench.expect_all_returned();
}

TEST(CachingAllocatorThreads, AnAllocatorMayGoBeforeTheThreadsThatUsedIt) {
  for (int round = 0; round < 4; ++round) {
    auto first = std::make_unique<AllocatorBench>(8, CachingAllocatorOptions{});
    AllocatorBench second(8, {});
    const StreamId a = first->add_stream();
    const StreamId b = second.add_stream();
    std::atomic<int> stage = 0;
    const auto pass = [&] {
      ++stage;
      stage.notify_all();
    };
    std::thread thread([&] {
      first->free(first->allocate(700, a, Category::kExternal, 1));
      second.free(second.allocate(700, b, Category::kExternal, 2));
      first->free(first->allocate(700, a, Category::kExternal, 3));
      pass();
      stage.wait(1);
      second.free(second.allocate(700, b, Category::kExternal, 4));
    });
    stage.wait(0);
    first->expect_all_returned();
    first.reset();
    pass();
    thread.join();
    second.expect_all_returned();
  }
}

}  // namespace
}  // namespace sluice::allocator
