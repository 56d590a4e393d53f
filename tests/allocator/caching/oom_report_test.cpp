// Reports of out of memory: each cause is made to happen, and the report proves it with its
// numbers.
#include "allocator/caching/oom_report.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/host/host_device.hpp"
#include "tests/allocator/caching/oom_fixture.hpp"

namespace sluice::allocator {
namespace {

TEST(OomReport, LiveAndRequestAboveAFullDeviceIsTrueNeed) {
  const OomFixture setup(counting(8), UINT64_MAX);
  setup.get(7 * kPage, setup.a, Category::kWeight);
  const auto report = setup.fail(2 * kPage, setup.b);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
  EXPECT_EQ(report->limit, OomLimit::kDevice);
  EXPECT_EQ(report->proof, "live 14.0 MiB + request 4.00 MiB > capacity of the device 16.0 MiB");
  EXPECT_EQ(report->may_hold_bytes, 8 * kPage);
  EXPECT_GT(report->live_bytes + report->requested_bytes, report->may_hold_bytes);
  expect_sums(*report);
}

TEST(OomReport, ACapThatIsTheDeviceIsTrueNeedAndCountsOtherHolders) {
  OomFixture setup(counting(8), 8 * kPage);
  const Reservation other = setup.ledger.reserve(Tier::kDevice, Category::kWeight, 3 * kPage);
  const device::RawBuffer weights = setup.device->allocate(3 * kPage);
  setup.get(4 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
  EXPECT_EQ(report->proof,
            "live 8.00 MiB + other holders 6.00 MiB + request 4.00 MiB > capacity of the device "
            "16.0 MiB");
  EXPECT_EQ(report->may_hold_bytes, 5 * kPage);
}

TEST(OomReport, ATierCapBelowTheDeviceIsTheCause) {
  const OomFixture setup(counting(16), 8 * kPage + 1000);
  setup.get(7 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kCap);
  EXPECT_EQ(report->limit, OomLimit::kTierCap);
  EXPECT_EQ(report->proof,
            "live 14.0 MiB + request 4.00 MiB > cap of tier device 16.0 MiB (16.0 MiB in whole "
            "pages), while the device has room for 16.0 MiB more");
}

TEST(OomReport, ATierCapIsNotTheCauseWhereTheDeviceHasNoMoreEither) {
  const OomFixture setup(counting(9), 8 * kPage);
  setup.get(7 * kPage, setup.a);
  EXPECT_EQ(setup.fail(3 * kPage, setup.a)->cause, OomCause::kTrueNeed);
  EXPECT_EQ(setup.fail(2 * kPage, setup.a)->cause, OomCause::kCap);  // one page is missing
}

TEST(OomReport, ACategoryCapIsNamed) {
  OomFixture setup(counting(16), 12 * kPage, {.category = Category::kWorkspace});
  setup.ledger.set_category_cap(Tier::kDevice, Category::kWorkspace, 4 * kPage);
  setup.get(3 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kCap);
  EXPECT_EQ(report->limit, OomLimit::kCategoryCap);
  EXPECT_EQ(report->limits.category_cap_bytes, 4 * kPage);
  EXPECT_NE(report->proof.find("cap of category workspace 8.00 MiB"), std::string::npos)
      << report->proof;
}

TEST(OomReport, MemoryThatOthersHoldOnTheDeviceIsExternal) {
  const OomFixture setup(std::make_unique<SharedDevice>(10 * kPage, 4 * kPage), UINT64_MAX);
  setup.get(5 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kExternal);
  EXPECT_EQ(report->external_bytes, 4 * kPage);
  // 5 + 2 + 4 > 10, and 5 + 2 <= 10.
  EXPECT_EQ(setup.fail(6 * kPage, setup.a)->cause, OomCause::kTrueNeed);
}

TEST(OomReport, FreePartsOfPagesAreFragmentation) {
  const OomFixture setup(counting(4), UINT64_MAX);
  std::vector<std::byte*> blocks;
  // One half of every page stays.
  for (std::uint64_t i = 0; i < 8; ++i) blocks.push_back(setup.get(kPage / 2, setup.a));
  for (std::size_t i = 0; i < blocks.size(); i += 2) setup.allocator->free(blocks[i]);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kFragmentation);
  EXPECT_EQ(report->free_bytes, 2 * kPage);
  EXPECT_EQ(report->free_page_bytes, 0u);
  EXPECT_EQ(report->free_part_bytes(), 2 * kPage);
  EXPECT_EQ(report->largest_free_bytes, kPage / 2);
  EXPECT_EQ(report->proof,
            "free 4.00 MiB >= request 4.00 MiB, but only 0 B in whole pages that may move: "
            "fragmentation inside pages of 2.00 MiB");
  expect_sums(*report);
}

TEST(OomReport, PagesThatMayNotMoveAreNamed) {
  const OomFixture setup(counting(4), UINT64_MAX, {}, false);
  setup.allocator->free(setup.get(3 * kPage, setup.b));
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kFragmentation);
  EXPECT_EQ(report->fixed_page_bytes, 3 * kPage);
  EXPECT_EQ(report->free_page_bytes, kPage);
  EXPECT_NE(report->proof.find("6.00 MiB in pages of streams that are not movable"),
            std::string::npos)
      << report->proof;
}

TEST(OomReport, ACachingAllocatorWaitsForPendingBlocksAndNeverNamesThem) {
  const OomFixture setup(counting(4), UINT64_MAX);
  const auto hold = std::make_shared<device::CountingDevice::Hold>();
  auto& device = dynamic_cast<device::CountingDevice&>(*setup.device);
  setup.get(kPage, setup.a);
  std::byte* const data = setup.get(3 * kPage, setup.a);
  setup.allocator->record_use(data, setup.b);
  device.hold_events(hold);
  setup.allocator->free(data);
  device.hold_events(nullptr);
  EXPECT_EQ(setup.allocator->statistics().pending_bytes, 3 * kPage);
  const auto report = setup.fail(4 * kPage, setup.a);
  EXPECT_EQ(report->pending_bytes, 0u);
  EXPECT_EQ(report->free_bytes, 3 * kPage);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
}

TEST(OomReport, PendingBytesOfOthersRecordsAreACause) {
  OomReport report;
  report.limits.device_capacity_bytes = report.limits.device_counted_bytes = 8 * kPage;
  report.reserved_bytes = 8 * kPage;
  report.live_bytes = report.used_bytes = 3 * kPage;
  report.pending_bytes = 4 * kPage;
  report.free_bytes = report.free_page_bytes = kPage;
  report.requested_bytes = report.block_bytes = 2 * kPage;
  prove_cause(report);
  EXPECT_EQ(report.cause, OomCause::kPendingStreams);
  EXPECT_EQ(report.proof,
            "free 2.00 MiB < request 4.00 MiB, while 8.00 MiB is freed and still used by other "
            "streams");
  report.requested_bytes = report.block_bytes = 6 * kPage;  // nor would it fit without
  prove_cause(report);
  EXPECT_EQ(report.cause, OomCause::kTrueNeed);
}

TEST(OomReport, ARequestAboveTheDeviceIsRefusedBeforeAnyPageIsTaken) {
  const OomFixture setup(counting(8), UINT64_MAX);
  setup.get(kPage, setup.a);
  const auto report = setup.fail(std::uint64_t{1} << 50U, setup.a);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
  EXPECT_EQ(report->may_hold_bytes, 8 * kPage);
  EXPECT_EQ(report->reserved_bytes, kPage);
  EXPECT_EQ(setup.device->counters().live_bytes, kPage);
}

TEST(OomReport, HoldsOnTheHostDeviceToo) {
  const OomFixture setup(
      device::make_host_device({.capacity_bytes = 8 * kPage, .detect_races = true}), UINT64_MAX);
  setup.get(5 * kPage, setup.a, Category::kWeight);
  setup.get(700, setup.b, Category::kGradient);
  setup.allocator->free(setup.get(1000, setup.b));  // into the thread's cache, and out of it
  const auto report = setup.fail(3 * kPage, setup.b);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
  EXPECT_EQ(report->live_bytes, 5 * kPage + 700);
  EXPECT_EQ(report->cached_bytes, 0u);
  expect_sums(*report);
}

TEST(OomReport, AddsUpWhileOtherThreadsAllocate) {
  record::MemoryRecorder recorder(5000);
  const OomFixture setup(device::make_host_device({.capacity_bytes = 8 * kPage}), UINT64_MAX,
                         {.recorder = &recorder});
  setup.get(6 * kPage, setup.a, Category::kWeight);
  std::atomic<bool> go_on = true;
  const auto work = [&](StreamId stream, std::uint32_t name) {
    while (go_on) {
      std::byte* const first = setup.get(1000, stream, Category::kGradient, name);
      setup.allocator->free(setup.get(5000, stream, Category::kActivation, name));
      setup.allocator->free(first);
    }
  };
  {
    const std::jthread on_a(work, setup.a, recorder.intern("a"));
    const std::jthread on_b(work, setup.b, recorder.intern("b"));
    for (int i = 0; i < 30; ++i) {
      try {
        setup.get(4 * kPage, setup.a);
        ADD_FAILURE() << "4 pages beside 6 of 8";
      } catch (const OutOfMemoryReported& error) {
        expect_sums(*error.report);
        EXPECT_EQ(error.report->cause, OomCause::kTrueNeed);
      }
    }
    go_on = false;
  }
  setup.allocator->check_invariants();
}

TEST(OomReport, LiveBytesAreThoseOfTheStatisticsByCategorySiteAndStream) {
  record::MemoryRecorder recorder(1000);
  const OomFixture setup(counting(8), UINT64_MAX, {.recorder = &recorder});
  const std::uint32_t attention = recorder.intern("layers.3.attention");
  const std::uint32_t mlp = recorder.intern("layers.3.mlp");
  setup.get(2 * kPage, setup.a, Category::kActivation, attention);
  setup.get(kPage, setup.a, Category::kActivation, attention);
  setup.get(1000, setup.b, Category::kActivation, mlp);
  setup.get(2 * kPage + 1, setup.b, Category::kWeight, mlp);
  const auto report = setup.fail(3 * kPage, setup.b, Category::kGradient, mlp);
  expect_sums(*report);
  const CachingAllocatorStatistics statistics = setup.allocator->statistics();
  EXPECT_EQ(report->live_bytes, statistics.live_bytes);
  EXPECT_EQ(report->live_by_category, statistics.live_by_category);
  EXPECT_EQ(report->used_bytes, statistics.used_bytes);
  EXPECT_EQ(report->free_bytes, statistics.free_bytes);
  EXPECT_EQ(report->reserved_bytes, statistics.reserved_bytes);
  ASSERT_EQ(report->sites.size(), 3u);
  EXPECT_EQ(report->sites[0].name, "layers.3.attention");
  EXPECT_EQ(report->sites[0].bytes, 3 * kPage);
  EXPECT_EQ(report->sites[0].count, 2u);
  EXPECT_EQ(report->sites[1].category, Category::kWeight);
  EXPECT_EQ(report->streams[setup.a].live_bytes, 3 * kPage);
  EXPECT_EQ(report->site, "layers.3.mlp");
}

TEST(OomReport, ItsMessageIsOneSentence) {
  const OomFixture setup(counting(8), 4 * kPage);
  setup.get(3 * kPage, setup.a);
  EXPECT_EQ(setup.fail(2 * kPage, setup.b, Category::kGradient)->sentence(),
            "out of device memory: 4.00 MiB (4194304 bytes) asked on stream 1 for category "
            "gradient, 6.00 MiB live; the cause is cap: live 6.00 MiB + request 4.00 MiB > cap of "
            "tier device 8.00 MiB, while the device has room for 8.00 MiB more");
}

}  // namespace
}  // namespace sluice::allocator
