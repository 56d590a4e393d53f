// Seeded random sequences on one thread: tight caps, several streams, uses across them, and work
// that really lags behind. The race detector and the marks in the blocks are the judges.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/caching/allocator_bench.hpp"
#include "tests/allocator/caching/stress_operations.hpp"
#include "tests/support/snapshot_sums.hpp"

namespace sluice::allocator {
namespace {

class RandomSequence {
 public:
  RandomSequence(std::uint64_t seed, std::uint64_t cap_pages,
                 const CachingAllocatorOptions& options, const DeviceUnderTest& device)
      : rng_(seed, stream_of("caching_allocator_random_test")),
        page_cap_(cap_pages),
        bench_(cap_pages, options, device) {
    for (int i = 0; i < 3; ++i) bench_.add_stream();
    fixed_ = bench_.add_stream(false);
  }

  void run(std::uint64_t operation_count) {
    for (std::uint64_t step = 0; step < operation_count; ++step) {
      run_one();
      if (step % 256 == 255) expect_consistent();
      if (::testing::Test::HasFailure()) return;
    }
    // Every way must have been taken, or the sequence proves less than it says.
    const CachingAllocatorStatistics statistics = bench_.allocator().statistics();
    EXPECT_GT(statistics.cache_hits, 0u);
    EXPECT_GT(statistics.remaps, 0u);
    EXPECT_GT(statistics.reclaims, 0u);
    EXPECT_GT(statistics.event_waits, 0u);
    EXPECT_GT(statistics.flushes, 0u);
    EXPECT_GT(pending_count_, 0u);
    EXPECT_GT(out_of_memory_count_, 0u);
    EXPECT_EQ(statistics.peak_reserved_bytes, bench_.cap_bytes());
    while (!live_.empty()) free_one(live_.size() - 1);
    bench_.expect_all_returned();
  }

 private:
  std::uint64_t draw(std::uint64_t bound) { return rng_.below(index_++, bound); }
  StreamId draw_stream() {
    const std::uint64_t kind = draw(16);
    return kind == 0 ? fixed_ : static_cast<StreamId>(kind % 3);
  }

  void run_one() {
    const std::uint64_t kind = draw(1000);
    if (kind < 500) {
      allocate_one();
    } else if (kind < 900) {
      // Now and then nearly all at once, as a step ends.
      if (!live_.empty()) free_one(draw(live_.size()));
    } else if (kind < 960) {
      if (!live_.empty()) bench_.check_on(draw_stream(), live_[draw(live_.size())]);
    } else if (kind < 980) {
      const std::chrono::microseconds lag(draw(400));
      bench_.queue(draw_stream(), [lag] { std::this_thread::sleep_for(lag); });
    } else if (kind < 990) {
      bench_.allocator().begin_step();
    } else if (kind < 992) {
      bench_.allocator().release_cached();
    } else if (kind < 994) {
      while (live_.size() > 4) free_one(draw(live_.size()));
    }
  }

  void allocate_one() {
    const std::uint64_t bytes = random_bytes(rng_, index_);
    const StreamId stream = draw_stream();
    const auto category = static_cast<Category>(draw(kCategoryCount));
    try {
      live_.push_back(bench_.allocate(bytes, stream, category, ++mark_));
    } catch (const OutOfMemory& error) {
      ++out_of_memory_count_;
      EXPECT_EQ(error.requested_bytes, bytes);
      expect_truly_out(error.requested_bytes, stream);
      for (int i = 0; i < 3 && !live_.empty(); ++i) free_one(draw(live_.size()));
    }
  }
  void free_one(std::size_t which) {
    const std::uint64_t before = bench_.allocator().statistics().pending_bytes;
    bench_.free(live_[which]);
    if (bench_.allocator().statistics().pending_bytes > before) ++pending_count_;
    live_[which] = live_.back();
    live_.pop_back();
  }

  // Refused: no free block, and not as many pages as the request is long, free or not yet taken.
  void expect_truly_out(std::uint64_t bytes, StreamId stream) {
    const CachingAllocatorStatistics statistics = bench_.allocator().statistics();
    EXPECT_EQ(statistics.pending_bytes, 0u);
    EXPECT_EQ(statistics.cached_bytes, 0u);
    std::uint64_t pages = page_cap_ - statistics.reserved_bytes / kPageBytes;
    for (const record::SnapshotSegment& segment : bench_.allocator().snapshot().segments) {
      for (const record::SnapshotBlock& block : segment.blocks) {
        if (block.state != record::BlockState::kFree) continue;
        const bool same_space = segment.is_small == (bytes <= kMiB) && segment.stream == stream;
        EXPECT_FALSE(same_space && block.bytes >= bytes);
        const std::uint64_t begin = round_up(block.address, kPageBytes);
        const std::uint64_t end = (block.address + block.bytes) / kPageBytes * kPageBytes;
        if (segment.stream != fixed_ && end > begin) pages += (end - begin) / kPageBytes;
      }
    }
    EXPECT_LT(pages, round_up(bytes, kPageBytes) / kPageBytes);
  }

  void expect_consistent() {
    CachingAllocator& allocator = bench_.allocator();
    allocator.check_invariants();
    const CachingAllocatorStatistics statistics = allocator.statistics();
    std::uint64_t asked_bytes = 0;
    for (const MarkedBlock& block : live_) asked_bytes += block.bytes;
    EXPECT_EQ(statistics.live_bytes, asked_bytes);
    EXPECT_EQ(statistics.allocation_count - statistics.free_count, live_.size());
    EXPECT_EQ(statistics.used_bytes + statistics.pending_bytes + statistics.cached_bytes +
                  statistics.free_bytes,
              statistics.reserved_bytes);
    EXPECT_EQ(bench_.ledger().totals(Tier::kDevice).live_bytes,
              bench_.device().counters().live_bytes);
    EXPECT_LE(statistics.reserved_bytes, bench_.device().counters().live_bytes);
    const testing::SnapshotSums sums = testing::sums_of(allocator.snapshot().segments);
    EXPECT_EQ(sums.live_bytes, asked_bytes);
    EXPECT_EQ(sums.live_count, live_.size());
    EXPECT_EQ(sums.bytes, statistics.reserved_bytes);
  }

  const CounterRng rng_;
  const std::uint64_t page_cap_;
  AllocatorBench bench_;
  StreamId fixed_ = 0;
  std::uint64_t index_ = 0;
  std::uint64_t mark_ = 0;
  std::uint64_t out_of_memory_count_ = 0;
  std::uint64_t pending_count_ = 0;
  std::vector<MarkedBlock> live_;
};

class CachingAllocatorRandom : public ::testing::TestWithParam<DeviceUnderTest> {};

TEST_P(CachingAllocatorRandom, AnySequenceKeepsContentsOrderAndBudget) {
  if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  constexpr std::uint64_t kSeedCount = 4;
  const std::uint64_t operation_count = stress_operations(12000);
  for (std::uint64_t seed = 1; seed <= kSeedCount; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    // Short segments, so that several stand side by side; budgets of moves that run out.
    RandomSequence sequence(seed, 24 + 8 * seed,
                            {.remap_budget_pages = seed % 2 == 0 ? 8192U : 32U,
                             .growth_slack = seed % 2 == 0 ? 0.0 : 1.0 / 64,
                             .thread_cache_bytes = seed * kMiB,
                             .segment_bytes = 32 * kPageBytes},
                            GetParam());
    sequence.run(operation_count / kSeedCount);
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(On, CachingAllocatorRandom, ::testing::ValuesIn(devices_under_test()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sluice::allocator
