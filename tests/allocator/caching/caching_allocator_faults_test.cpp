// The caching allocator where something fails: the device, its callers' sizes, their threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/allocator/caching/allocator_bench.hpp"
#include "tests/allocator/caching/failing_heap.hpp"
#include "tests/support/page.hpp"

namespace sluice::allocator {
namespace {

constexpr CachingAllocatorOptions kSmallSegments{.segment_bytes = 256 * kPage};

TEST(CachingAllocatorFaults, SizesNearTheLimitOfTheTypeAreOutOfMemory) {
  AllocatorBench bench(8, kSmallSegments);
  const StreamId a = bench.add_stream();
  const MarkedBlock held = bench.allocate(100, a, Category::kActivation, 1);
  for (const std::uint64_t bytes :
       {UINT64_MAX, UINT64_MAX - 510, UINT64_MAX - 511, UINT64_MAX - 512, UINT64_MAX - kPage,
        std::uint64_t{1} << 63U, std::uint64_t{1} << 50U, 9 * kPage}) {
    EXPECT_THROW(bench.allocator().allocate({bytes, a}), OutOfMemory) << bytes;
    bench.allocator().check_invariants();
  }
  bench.free(held);
  bench.free(bench.allocate(8 * kPage, a, Category::kActivation, 2));
  bench.expect_all_returned();
}

TEST(CachingAllocatorFaults, PagesTakenAfterAWaitComeBehindThatWait) {
  AllocatorBench bench(3, {.growth_slack = 0.0, .segment_bytes = 256 * kPage});
  const StreamId a = bench.add_stream();
  const StreamId b = bench.add_stream();
  const StreamId c = bench.add_stream();
  const MarkedBlock one = bench.allocate(kPage, b, Category::kActivation, 1);
  const MarkedBlock two = bench.allocate(2 * kPage, b, Category::kActivation, 2);
  std::atomic<bool> go = false;
  bench.stream(c).launch([&] { go.wait(false); });
  bench.check_on(c, two);
  bench.free(two);
  bench.free(one);
  // Takes the free page of b first, then waits for c and takes the others, of b as well.
  const MarkedBlock all = bench.allocate(3 * kPage, a, Category::kActivation, 3);
  go = true;
  go.notify_all();
  EXPECT_NO_THROW(bench.synchronize());  // c's reading comes before a's writing
  bench.free(all);
  bench.expect_all_returned();
}

TEST(CachingAllocatorFaults, AFreeThatFailsMayBeTriedAgain) {
  AllocatorBench bench(8, kSmallSegments);
  const StreamId a = bench.add_stream();
  const StreamId b = bench.add_stream();
  const MarkedBlock block = bench.allocate(kPage, a, Category::kWeight, 1);
  bench.check_on(b, block);
  bench.device().fail_call(0);
  EXPECT_THROW(bench.free(block), DeviceError);
  EXPECT_EQ(bench.allocator().statistics().live_bytes, kPage);
  EXPECT_EQ(bench.allocator().statistics().free_count, 0u);
  bench.free(block);
  bench.expect_all_returned();
}

// A thread's own objects may hold blocks, and be destroyed after this library's cache of
// the thread.
TEST(CachingAllocatorFaults, AThreadMayFreeAfterItsCacheWasHandedOn) {
  struct Holder {
    AllocatorBench* bench = nullptr;
    std::vector<MarkedBlock> blocks;
    ~Holder() {
      for (const MarkedBlock& block : blocks) bench->free(block);
    }
  };
  AllocatorBench bench(8, kSmallSegments);
  const StreamId a = bench.add_stream();
  for (int round = 0; round < 3; ++round) {
    std::thread([&] {
      static thread_local Holder holder;
      holder.bench = &bench;  // made before the thread's first use of the allocator
      for (std::uint64_t i = 1; i <= 3; ++i) {
        holder.blocks.push_back(bench.allocate(1000 * i, a, Category::kActivation, i));
      }
    }).join();
  }
  bench.expect_all_returned();
}

// The Nth call of this device fails, once or from then on. The request of that moment is refused,
// and nothing else is lost.
class DeviceFailures {
 public:
  // Returns the calls that there were.
  std::uint64_t run(std::int64_t nth, bool forever) {
    const std::uint64_t calls_before = bench_.device().calls();
    if (forever) {
      bench_.device().fail_from_call(nth);
    } else {
      bench_.device().fail_call(nth);
    }
    for (int round = 0; round < 2; ++round) {
      for (const std::uint64_t pages : {1, 2, 1, 2, 2, 1}) allocate(pages * kPage, a_);
      allocate(3000, b_);
      if (live_.size() > 1) bench_.check_on(b_, live_[1]);
      free_all(2);
      allocate(4 * kPage, b_);  // stitched of pages of a
      allocate(3 * kPage, a_);  // after b's reads
      free_all(1);
    }
    bench_.allocator().release_cached();
    // None, where there were fewer calls: how many depends on how far the streams have come.
    const std::uint64_t call_count = bench_.device().calls() - calls_before;
    const bool reached = call_count > static_cast<std::uint64_t>(nth);
    EXPECT_EQ(failure_count_ > 0, reached);
    EXPECT_TRUE(forever || failure_count_ <= 1);
    bench_.device().fail_call(-1);
    free_all(1);
    EXPECT_TRUE(live_.empty());
    bench_.free(bench_.allocate(12 * kPage, a_, Category::kActivation, ++mark_));
    bench_.expect_all_returned();
    return call_count;
  }

 private:
  template <typename Call>
  bool try_to(const Call& call) {
    bool succeeded = true;
    try {
      call();
    } catch (const DeviceError&) {
      succeeded = false;
      ++failure_count_;
    }
    EXPECT_NO_THROW(bench_.allocator().check_invariants());
    return succeeded;
  }
  void allocate(std::uint64_t bytes, StreamId stream) {
    const std::uint64_t live_bytes = bench_.allocator().statistics().live_bytes;
    const bool succeeded = try_to(
        [&] { live_.push_back(bench_.allocate(bytes, stream, Category::kActivation, ++mark_)); });
    EXPECT_EQ(bench_.allocator().statistics().live_bytes, live_bytes + (succeeded ? bytes : 0));
  }
  // Frees each block at a multiple of `stride`. A block that fails is kept, and tried again with
  // the next.
  void free_all(std::size_t stride) {
    std::vector<MarkedBlock> kept;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (i % stride != 0 || !try_to([&] { bench_.free(live_[i]); })) kept.push_back(live_[i]);
    }
    live_ = kept;
  }

  AllocatorBench bench_{12, {.growth_slack = 0.0, .segment_bytes = 16 * kPage}};
  const StreamId a_ = bench_.add_stream();
  const StreamId b_ = bench_.add_stream();
  std::vector<MarkedBlock> live_;
  std::uint64_t mark_ = 0;
  int failure_count_ = 0;
};

TEST(CachingAllocatorFaults, TheNthFailureLosesNothing) {
  std::int64_t call_count = 1;
  for (std::int64_t nth = 0; nth < call_count; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    call_count = static_cast<std::int64_t>(DeviceFailures().run(nth, false));
    if (nth % 8 == 0) DeviceFailures().run(nth / 2, true);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(call_count, 30);
}

// Faults of the heap: the Nth allocation of each call fails, for each N, until the call
// succeeds.
class HeapFailures : public ::testing::Test {
 protected:
  // Calls until no allocation of it is left to fail.
  template <typename Call>
  void call(const Call& one) {
    for (std::int64_t nth = 0;; ++nth) {
      const std::uint64_t live_bytes = bench_.allocator().statistics().live_bytes;
      fail_heap_allocation(nth);
      try {
        one();
        fail_heap_allocation(-1);
        ASSERT_NO_THROW(bench_.allocator().check_invariants());
        return;  // none failed any more, or it did without
      } catch (const std::bad_alloc&) {
        fail_heap_allocation(-1);
        ++failure_count_;
        ASSERT_NO_THROW(bench_.allocator().check_invariants()) << "allocation " << nth;
        ASSERT_EQ(bench_.allocator().statistics().live_bytes, live_bytes);
      }
    }
  }
  MarkedBlock allocate(std::uint64_t bytes, StreamId stream) {
    MarkedBlock block{nullptr, bytes, stream, ++mark_};
    call([&] { block.data = bench_.allocator().allocate({bytes, stream}); });
    return block;
  }
  void free(const MarkedBlock& block) {
    call([&] { bench_.allocator().free(block.data); });
  }

  AllocatorBench bench_{12, {.growth_slack = 0.0, .segment_bytes = 16 * kPage}};
  std::uint64_t mark_ = 0;
  int failure_count_ = 0;
};

TEST_F(HeapFailures, TheNthLosesNothing) {
  const StreamId a = bench_.add_stream();
  const StreamId b = bench_.add_stream();
  for (int round = 0; round < 3; ++round) {
    std::vector<MarkedBlock> blocks;
    for (const std::uint64_t pages : {1, 2, 1, 2, 2, 1}) {
      blocks.push_back(allocate(pages * kPage, a));
      ASSERT_FALSE(HasFatalFailure());
    }
    blocks.push_back(allocate(3000, b));
    call([&] { bench_.allocator().record_use(blocks[1].data, b); });
    for (const std::size_t i : {1, 3, 5}) free(blocks[i]);
    ASSERT_FALSE(HasFatalFailure());
    blocks[1] = allocate(4 * kPage, b);
    blocks[3] = allocate(kPage + 512 * static_cast<std::uint64_t>(round), a);
    blocks.erase(blocks.begin() + 5);
    ASSERT_FALSE(HasFatalFailure());
    for (const MarkedBlock& block : blocks) free(block);
    call([&] { bench_.allocator().release_cached(); });
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_GT(failure_count_, 100);
  bench_.free(bench_.allocate(12 * kPage, a, Category::kActivation, ++mark_));
  bench_.expect_all_returned();
}

}  // namespace
}  // namespace sluice::allocator
