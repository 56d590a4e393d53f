// The caching allocator over the host device: when it reuses, moves, waits and refuses.
#include "allocator/caching/caching_allocator.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "device/host/host_device.hpp"
#include "tests/support/page.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::allocator {
namespace {

class CachingAllocatorTest : public ::testing::Test {
 protected:
  // A cap of so many pages.
  void make(std::uint64_t cap_pages, CachingAllocatorOptions options = {}) {
    ledger_ = std::make_unique<Ledger>(std::array<std::uint64_t, 3>{cap_pages * kPage, 0, 0});
    pages_ = std::make_unique<PagePool>(*device_, *ledger_, kPage);
    options.segment_bytes = 256 * kPage;
    allocator_ = std::make_unique<CachingAllocator>(*device_, *pages_, options);
    a_ = allocator_->add_stream(*stream_a_);
    b_ = allocator_->add_stream(*stream_b_);
  }
  void hold_stream_b() {
    stream_b_->launch([this] { go_.wait(false); });
  }
  void let_stream_b_go() {
    go_ = true;
    go_.notify_all();
  }
  void TearDown() override {
    let_stream_b_go();
    if (allocator_ == nullptr) return;
    allocator_->check_invariants();
    allocator_.reset();
    EXPECT_EQ(pages_->live_handles(), 0u);
    pages_.reset();
    EXPECT_EQ(ledger_->totals(Tier::kDevice).live_bytes, 0u);
    EXPECT_EQ(device_->counters().live_bytes, 0u);
  }
  std::byte* allocate(std::uint64_t bytes, StreamId stream) {
    std::byte* const data = allocator_->allocate({bytes, stream, Category::kActivation, 0});
    allocator_->check_invariants();
    return data;
  }
  void free(std::byte* data) {
    allocator_->free(data);
    allocator_->check_invariants();
  }

  std::unique_ptr<device::Device> device_ =
      device::make_host_device({.capacity_bytes = 256 * kPage, .detect_races = true});
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<PagePool> pages_;
  std::unique_ptr<device::Stream> stream_a_ = device_->create_stream("a");
  std::unique_ptr<device::Stream> stream_b_ = device_->create_stream("b");
  std::unique_ptr<CachingAllocator> allocator_;
  std::atomic<bool> go_ = false;
  StreamId a_ = 0;
  StreamId b_ = 0;
};

// If a pool's free blocks lie in the thread's cache in other sizes, they serve the request alone.
TEST_F(CachingAllocatorTest, AThreadReusesItsOwnCacheFirst) {
  make(16);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocate(256 * kKiB, a_));  // a page
  for (std::byte* block : blocks) allocator_->free(block);
  const std::uint64_t slow_count = allocator_->statistics().slow_count;
  ASSERT_EQ(allocator_->statistics().cached_bytes, kPage);
  std::byte* const other = allocate(512 * kKiB, a_);
  EXPECT_EQ(allocator_->statistics().slow_count, slow_count);
  EXPECT_EQ(allocator_->statistics().reserved_bytes, kPage);
  allocator_->free(other);
}

TEST_F(CachingAllocatorTest, ReusesBlocksThatItsStreamFreed) {
  make(8);
  std::byte* const large = allocate(3 * kPage, a_);
  free(large);
  EXPECT_EQ(allocate(3 * kPage, a_), large);
  std::byte* const small = allocate(1000, a_);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(small) % 512, 0u);
  EXPECT_EQ(allocator_->block_bytes(small), 1024u);
  free(small);
  EXPECT_EQ(allocate(1024, a_), small);  // one size
  const CachingAllocatorStatistics statistics = allocator_->statistics();
  EXPECT_EQ(statistics.live_bytes, 3 * kPage + 1024);
  EXPECT_EQ(statistics.reserved_bytes, 4 * kPage);
  EXPECT_EQ(statistics.cache_hits, 1u);
  EXPECT_EQ(statistics.fresh_pages, 4u);
  EXPECT_EQ(ledger_->totals(Tier::kDevice).live_bytes, 4 * kPage);
}

// The block comes back whole for a request of its size; otherwise it joins its free neighbours.
TEST_F(CachingAllocatorTest, TheBlockThatAStreamFreedLastComesBackFirst) {
  make(16);
  std::byte* const first = allocate(2 * kPage, a_);
  std::byte* const second = allocate(3 * kPage, a_);
  std::byte* const wall = allocate(2 * kPage, a_);
  free(first);
  free(second);
  EXPECT_EQ(allocator_->statistics().cached_bytes, 3 * kPage);
  EXPECT_EQ(allocator_->statistics().free_bytes, 2 * kPage);
  EXPECT_THROW(allocator_->free(second), InternalError);
  EXPECT_EQ(allocate(3 * kPage, a_), second);
  free(second);
  EXPECT_EQ(allocate(5 * kPage, a_), first);
  EXPECT_EQ(allocator_->statistics().cached_bytes, 0u);
  free(first);
  EXPECT_EQ(allocate(kPage + 512, a_), first);
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 7 * kPage);
  EXPECT_EQ(allocator_->statistics().slow_count, 3u);
  free(first);
  free(wall);
}

// Requests of other streams find that block, too, and so does a release of all cached memory.
TEST_F(CachingAllocatorTest, TheBlockThatAStreamFreedLastServesOtherStreams) {
  make(4);
  std::byte* const mine = allocate(4 * kPage, a_);
  free(mine);
  std::byte* const others = allocate(4 * kPage, b_);
  free(others);
  allocator_->release_cached();
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 0u);
}

TEST_F(CachingAllocatorTest, ZeroBytesAllocateNothing) {
  make(1);
  EXPECT_EQ(allocator_->allocate({0, a_}), nullptr);
  allocator_->free(nullptr);
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 0u);
}

TEST_F(CachingAllocatorTest, RefusesForeignPointers) {
  make(8);
  std::byte* const data = allocate(kPage * 2, a_);
  EXPECT_THROW(allocator_->free(data + 512), InternalError);
  int local = 0;
  EXPECT_THROW(allocator_->free(reinterpret_cast<std::byte*>(&local)), InternalError);
  free(data);
  EXPECT_THROW(allocator_->free(data), InternalError);
  std::byte* const small = allocate(512, a_);
  free(small);
  EXPECT_THROW(allocator_->free(small), InternalError);  // it lies in the thread's cache
  EXPECT_THROW(allocator_->allocate({1, 17}), InternalError);
}

TEST_F(CachingAllocatorTest, StitchesScatteredPagesBeforeItFails) {
  make(8);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(2 * kPage, a_));
  std::memset(blocks[1], 1, 2 * kPage);
  std::memset(blocks[3], 3, 2 * kPage);
  free(blocks[0]);
  free(blocks[2]);
  std::byte* const whole = allocate(4 * kPage, a_);  // no two free pages are side by side but two
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 8 * kPage);
  std::memset(whole, 7, 4 * kPage);
  for (std::uint64_t i = 0; i < 2 * kPage; i += 4096) {
    ASSERT_EQ(blocks[1][i], std::byte{1});
    ASSERT_EQ(blocks[3][i], std::byte{3});
  }
  EXPECT_THROW(allocate(512, a_), OutOfMemory);
}

TEST_F(CachingAllocatorTest, APageThatComesBackIsNotMappedAgain) {
  make(8);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(2 * kPage, a_));
  for (int i : {0, 2}) free(blocks[i]);
  free(allocate(4 * kPage, a_));
  const auto repeat = [&] {
    blocks[0] = allocate(2 * kPage, a_);
    blocks[2] = allocate(2 * kPage, a_);
    free(blocks[0]);
    free(blocks[2]);
    free(allocate(4 * kPage, a_));
  };
  repeat();
  const std::uint64_t map_calls = device_->counters().map_calls;
  for (int i = 0; i < 5; ++i) repeat();
  EXPECT_EQ(device_->counters().map_calls, map_calls);
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 8 * kPage);
}

TEST_F(CachingAllocatorTest, BeyondItsBudgetOfRemapsItGrowsWhileItCan) {
  make(16, {.remap_budget_pages = 1});
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(2 * kPage, a_));
  for (int i : {0, 2}) free(blocks[i]);
  free(allocate(4 * kPage, a_));
  const CachingAllocatorStatistics statistics = allocator_->statistics();
  EXPECT_EQ(statistics.remaps, 1u);
  EXPECT_GT(statistics.reserved_bytes, 8 * kPage);
}

TEST_F(CachingAllocatorTest, AnotherStreamTakesPagesBehindAnEvent) {
  make(4);
  std::byte* const of_a = allocate(4 * kPage, a_);
  // The race detector sees both uses of the physical pages: without the event it throws.
  const device::MemoryAccess write_a{of_a, 4 * kPage, true};
  stream_a_->launch([=] { std::memset(of_a, 1, 4 * kPage); }, {&write_a, 1});
  free(of_a);
  std::byte* const of_b = allocate(3 * kPage, b_);
  const device::MemoryAccess write_b{of_b, 3 * kPage, true};
  stream_b_->launch([=] { std::memset(of_b, 2, 3 * kPage); }, {&write_b, 1});
  stream_b_->synchronize(Deadline::after_seconds(60));
  const CachingAllocatorStatistics statistics = allocator_->statistics();
  EXPECT_EQ(statistics.event_waits, 1u);
  EXPECT_EQ(statistics.synchronisations, 0u);
  EXPECT_EQ(statistics.reserved_bytes, 4 * kPage);
}

TEST_F(CachingAllocatorTest, ABlockThatOthersUseWaitsForThem) {
  make(16, {.growth_slack = 2.0});  // it may grow and need not wait
  std::byte* const data = allocate(2 * kPage, a_);
  hold_stream_b();
  allocator_->record_use(data, b_);
  free(data);
  EXPECT_EQ(allocator_->statistics().pending_bytes, 2 * kPage);
  EXPECT_NE(allocate(2 * kPage, a_), data);
  let_stream_b_go();
  stream_b_->synchronize(Deadline::after_seconds(60));
  EXPECT_EQ(allocate(2 * kPage, a_), data);
  EXPECT_EQ(allocator_->statistics().event_waits, 0u);
}

TEST_F(CachingAllocatorTest, RatherThanGrowMuchAStreamWaits) {
  make(16);
  std::byte* const data = allocate(2 * kPage, a_);
  hold_stream_b();
  allocator_->record_use(data, b_);
  free(data);
  EXPECT_EQ(allocate(2 * kPage, a_), data);  // after b, which the host does not wait for
  const CachingAllocatorStatistics statistics = allocator_->statistics();
  EXPECT_EQ(statistics.event_waits, 1u);
  EXPECT_EQ(statistics.reserved_bytes, 2 * kPage);
  let_stream_b_go();
}

TEST_F(CachingAllocatorTest, UnderPressureItWaitsForTheSmallestPendingBlockThatSuffices) {
  make(10);
  std::vector<std::byte*> blocks;
  for (const std::uint64_t pages : {1, 5, 2, 2}) blocks.push_back(allocate(pages * kPage, a_));
  hold_stream_b();
  for (std::byte* data : blocks) {
    allocator_->record_use(data, b_);
    free(data);
  }
  std::byte* const found = allocate(2 * kPage, a_);  // returns although b has not come so far
  EXPECT_TRUE(found == blocks[2] || found == blocks[3]);
  const CachingAllocatorStatistics statistics = allocator_->statistics();
  EXPECT_EQ(statistics.event_waits, 1u);
  EXPECT_EQ(statistics.synchronisations, 0u);
  EXPECT_EQ(statistics.pending_bytes, 8 * kPage);
  let_stream_b_go();
}

TEST_F(CachingAllocatorTest, OutOfMemoryNamesTheRequestAndChangesNothing) {
  make(4);
  std::byte* const held = allocate(3 * kPage, a_);
  const auto error = testing::thrown_by<OutOfMemory>([&] { allocate(2 * kPage, a_); });
  EXPECT_EQ(error.requested_bytes, 2 * kPage);
  EXPECT_EQ(error.available_bytes, kPage);
  EXPECT_NE(allocate(kPage, a_), nullptr);
  free(held);
}

TEST_F(CachingAllocatorTest, PagesOfAStreamThatIsNotMovableStay) {
  make(4);
  std::unique_ptr<device::Stream> stream = device_->create_stream("registered");
  const StreamId fixed = allocator_->add_stream(*stream, false);
  std::byte* const data = allocate(3 * kPage, fixed);
  free(data);
  EXPECT_THROW(allocate(2 * kPage, a_), OutOfMemory);
  allocator_->release_cached();
  EXPECT_EQ(allocate(3 * kPage, fixed), data);
  allocator_.reset();
  stream.reset();
}

TEST_F(CachingAllocatorTest, ReleaseCachedFreesEveryUnusedPage) {
  make(8);
  std::byte* const held = allocate(kPage + 512, a_);
  free(allocate(4 * kPage, b_));
  allocator_->release_cached();
  allocator_->check_invariants();
  EXPECT_EQ(allocator_->statistics().reserved_bytes, 2 * kPage);
  EXPECT_EQ(device_->counters().live_bytes, 2 * kPage);
  free(held);
  allocator_->release_cached();
  EXPECT_EQ(device_->counters().live_bytes, 0u);
}

TEST_F(CachingAllocatorTest, StatisticsAddUpByCategory) {
  make(16);
  std::byte* const weight = allocator_->allocate({700, a_, Category::kWeight, 3});
  std::byte* const gradient = allocator_->allocate({3 * kPage, b_, Category::kGradient, 4});
  const CachingAllocatorStatistics statistics = allocator_->statistics();
  EXPECT_EQ(statistics.live_by_category[static_cast<std::size_t>(Category::kWeight)], 700u);
  EXPECT_EQ(statistics.live_by_category[static_cast<std::size_t>(Category::kGradient)], 3 * kPage);
  EXPECT_EQ(statistics.used_bytes, 1024 + 3 * kPage);
  allocator_->free(weight);
  EXPECT_EQ(allocator_->statistics().cached_bytes, 1024u);
  allocator_->free(gradient);
}

}  // namespace
}  // namespace sluice::allocator
