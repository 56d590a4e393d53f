// Reports of out of memory: each cause made to happen, the numbers that prove it, and fixes that
// hold where they are really applied.
#include "allocator/caching/oom_report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "allocator/caching/planning_allocator.hpp"
#include "allocator/oom/oom_fixes.hpp"
#include "allocator/oom/oom_text.hpp"
#include "device/counting/counting_device.hpp"
#include "device/host/host_device.hpp"
#include "tests/support/forwarding_device.hpp"
#include "tools/replay/explain_out_of_memory.hpp"

namespace sluice::allocator {
namespace {

constexpr std::uint64_t kPage = kPageBytes;

// A counting device, part of whose capacity other programs hold.
class SharedDevice final : public testing::ForwardingDevice {
 public:
  SharedDevice(std::uint64_t capacity_bytes, std::uint64_t held_by_others)
      : ForwardingDevice(std::make_unique<device::CountingDevice>(capacity_bytes)),
        held_by_others_(held_by_others) {}
  device::PhysicalBlock create_block(std::uint64_t bytes) override {
    if (counters().live_bytes + bytes + held_by_others_ > facts().capacity_bytes) {
      throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes, 0);
    }
    return inner().create_block(bytes);
  }

 private:
  std::uint64_t held_by_others_;
};

// An allocator with two streams under a cap, and what it needs.
struct Fixture {
  Fixture(std::unique_ptr<device::Device> its_device, std::uint64_t cap_bytes,
          CachingAllocatorOptions options = {}, bool b_moves = true)
      : device(std::move(its_device)),
        ledger({cap_bytes, 0, 0}),
        pages(*device, ledger, kPage),
        stream_a(device->create_stream("a")),
        stream_b(device->create_stream("b")) {
    options.segment_bytes = 512 * kPage;
    allocator = std::make_unique<CachingAllocator>(*device, pages, options);
    a = allocator->add_stream(*stream_a);
    b = allocator->add_stream(*stream_b, b_moves);
  }

  std::byte* get(std::uint64_t bytes, StreamId stream, Category category = Category::kActivation,
                 std::uint32_t name = 0) const {
    return allocator->allocate({bytes, stream, category, name});
  }
  // The report of a request that must fail.
  std::shared_ptr<const OomReport> fail(std::uint64_t bytes, StreamId stream,
                                        Category category = Category::kActivation,
                                        std::uint32_t name = 0) const {
    try {
      get(bytes, stream, category, name);
    } catch (const OutOfMemoryReported& error) {
      EXPECT_EQ(error.requested_bytes, bytes);
      EXPECT_EQ(error.report->sentence(), error.what());
      allocator->check_invariants();
      return error.report;
    }
    ADD_FAILURE() << "a request of " << bytes << " bytes was served";
    return std::make_shared<OomReport>();
  }

  std::unique_ptr<device::Device> device;
  Ledger ledger;
  PagePool pages;
  std::unique_ptr<device::Stream> stream_a;
  std::unique_ptr<device::Stream> stream_b;
  std::unique_ptr<CachingAllocator> allocator;
  StreamId a = 0;
  StreamId b = 0;
};

std::unique_ptr<device::Device> counting(std::uint64_t pages) {
  return std::make_unique<device::CountingDevice>(pages * kPage);
}

void expect_sums(const OomReport& report) {
  const auto& categories = report.live_by_category;
  EXPECT_EQ(std::accumulate(categories.begin(), categories.end(), std::uint64_t{0}),
            report.live_bytes);
  std::uint64_t site_bytes = 0;
  std::uint64_t site_count = 0;
  for (const OomSite& site : report.sites) {
    site_bytes += site.bytes;
    site_count += site.count;
  }
  EXPECT_EQ(site_bytes, report.live_bytes);
  EXPECT_EQ(site_count, report.live_count);
  std::uint64_t stream_bytes = 0;
  for (const OomStream& stream : report.streams) stream_bytes += stream.live_bytes;
  EXPECT_EQ(stream_bytes, report.live_bytes);
  EXPECT_EQ(report.used_bytes + report.pending_bytes + report.cached_bytes + report.free_bytes,
            report.reserved_bytes);
}

const OomFix* find(const OomFixes& fixes, OomChange change) {
  const auto found = std::find_if(fixes.tried.begin(), fixes.tried.end(),
                                  [&](const OomFix& fix) { return fix.change == change; });
  return found == fixes.tried.end() ? nullptr : &*found;
}

TEST(OomReport, LiveAndRequestAboveAFullDeviceIsTrueNeed) {
  const Fixture setup(counting(8), UINT64_MAX);
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
  Fixture setup(counting(8), 8 * kPage);
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
  const Fixture setup(counting(16), 8 * kPage + 1000);
  setup.get(7 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kCap);
  EXPECT_EQ(report->limit, OomLimit::kTierCap);
  EXPECT_EQ(report->proof,
            "live 14.0 MiB + request 4.00 MiB > cap of tier device 16.0 MiB (16.0 MiB in whole "
            "pages), while the device has room for 16.0 MiB more");
}

TEST(OomReport, ATierCapIsNotTheCauseWhereTheDeviceHasNoMoreEither) {
  const Fixture setup(counting(9), 8 * kPage);
  setup.get(7 * kPage, setup.a);
  EXPECT_EQ(setup.fail(3 * kPage, setup.a)->cause, OomCause::kTrueNeed);
  EXPECT_EQ(setup.fail(2 * kPage, setup.a)->cause, OomCause::kCap);  // one page is missing
}

TEST(OomReport, ACategoryCapIsNamed) {
  Fixture setup(counting(16), 12 * kPage, {.category = Category::kWorkspace});
  setup.ledger.set_category_cap(Tier::kDevice, Category::kWorkspace, 4 * kPage);
  setup.get(3 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kCap);
  EXPECT_EQ(report->limit, OomLimit::kCategoryCap);
  EXPECT_EQ(report->limits.category_cap_bytes, 4 * kPage);
  EXPECT_NE(report->proof.find("cap of category workspace 8.00 MiB"), std::string::npos)
      << report->proof;
}

TEST(OomReport, WhatOthersHoldOfTheDeviceIsExternal) {
  const Fixture setup(std::make_unique<SharedDevice>(10 * kPage, 4 * kPage), UINT64_MAX);
  setup.get(5 * kPage, setup.a);
  const auto report = setup.fail(2 * kPage, setup.a);
  EXPECT_EQ(report->cause, OomCause::kExternal);
  EXPECT_EQ(report->external_bytes, 4 * kPage);
  // 5 + 2 + 4 > 10, and 5 + 2 <= 10.
  EXPECT_EQ(setup.fail(6 * kPage, setup.a)->cause, OomCause::kTrueNeed);
}

TEST(OomReport, FreePartsOfPagesAreFragmentation) {
  const Fixture setup(counting(4), UINT64_MAX);
  std::vector<std::byte*> blocks;
  // Of every page one half stays.
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
  const Fixture setup(counting(4), UINT64_MAX, {}, false);
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
  const Fixture setup(counting(4), UINT64_MAX);
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

TEST(OomReport, WhatCanNeverFitIsRefusedBeforeAnyPageIsTaken) {
  const Fixture setup(counting(8), UINT64_MAX);
  setup.get(kPage, setup.a);
  const auto report = setup.fail(std::uint64_t{1} << 50U, setup.a);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
  EXPECT_EQ(report->may_hold_bytes, 8 * kPage);
  EXPECT_EQ(report->reserved_bytes, kPage);
  EXPECT_EQ(setup.device->counters().live_bytes, kPage);
}

TEST(OomReport, HoldsOnTheHostDeviceToo) {
  const Fixture setup(device::make_host_device({.capacity_bytes = 8 * kPage, .detect_races = true}),
                      UINT64_MAX);
  setup.get(5 * kPage, setup.a, Category::kWeight);
  setup.get(700, setup.b, Category::kGradient);
  setup.allocator->free(setup.get(1000, setup.b));  // into the thread's cache, and out of it
  const auto report = setup.fail(3 * kPage, setup.b);
  EXPECT_EQ(report->cause, OomCause::kTrueNeed);
  EXPECT_EQ(report->live_bytes, 5 * kPage + 700);
  EXPECT_EQ(report->cached_bytes, 0u);
  expect_sums(*report);
}

TEST(OomReport, AddsUpWhileOthersAllocate) {
  record::MemoryRecorder recorder(5000);
  const Fixture setup(device::make_host_device({.capacity_bytes = 8 * kPage}), UINT64_MAX,
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
  const Fixture setup(counting(8), UINT64_MAX, {.recorder = &recorder});
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

TEST(OomReport, WhatIsOneSentence) {
  const Fixture setup(counting(8), 4 * kPage);
  setup.get(3 * kPage, setup.a);
  EXPECT_EQ(setup.fail(2 * kPage, setup.b, Category::kGradient)->sentence(),
            "out of device memory: 4.00 MiB (4194304 bytes) asked on stream 1 for category "
            "gradient, 6.00 MiB live; the cause is cap: live 6.00 MiB + request 4.00 MiB > cap of "
            "tier device 8.00 MiB, while the device has room for 8.00 MiB more");
}

// Live blocks by address: what a report's record says at its end.
std::vector<std::uint64_t> live_in(const record::MemorySnapshot& record) {
  std::vector<std::uint64_t> bytes;
  for (const record::SnapshotSegment& segment : record.segments) {
    for (const record::SnapshotBlock& block : segment.blocks) {
      if (block.state == record::BlockState::kAllocated) bytes.push_back(block.requested_bytes);
    }
  }
  return bytes;
}

// Blocks of an arena are told of in its place, with a record of all and with one of the last
// events.
TEST(OomReport, APlannersArenaIsTold) {
  for (const std::size_t event_count : {1000, 6}) {
    record::MemoryRecorder recorder(event_count);
    const Fixture setup(counting(16), 8 * kPage, {.recorder = &recorder});
    PlanningAllocator planner(*setup.device, *setup.allocator, {.in_background = false});
    const StreamId c = planner.add_stream(*setup.stream_a);
    const std::uint32_t site = recorder.intern("layers.1");
    const auto begin = [&] {
      planner.begin_step();
      return planner.allocate({2 * kPage, c, Category::kWorkspace, site});
    };
    for (int i = 0; i < 6; ++i) {
      std::byte* const first = begin();
      planner.free(planner.allocate({kPage, c, Category::kActivation, 0}));
      planner.free(first);
    }
    ASSERT_EQ(planner.statistics().arena_bytes, 3 * kPage);
    std::byte* const first = begin();
    try {
      planner.allocate({6 * kPage, c, Category::kGradient, 0});
      FAIL() << "6 pages beside 3 of 8";
    } catch (const OutOfMemoryReported& error) {
      const OomReport& report = *error.report;
      EXPECT_EQ(report.arena_bytes, 3 * kPage);
      EXPECT_EQ(report.arena_live_bytes, 2 * kPage);
      ASSERT_EQ(report.sites.size(), 2u);
      EXPECT_EQ(report.sites[0].name, "layers.1");
      EXPECT_EQ(report.sites[0].bytes, 2 * kPage);
      EXPECT_EQ(report.sites[1].name, "planned arena, not in use");
      EXPECT_EQ(report.sites[1].bytes, kPage);
      const auto& live = report.live_by_category;
      EXPECT_EQ(live[static_cast<std::size_t>(Category::kWorkspace)], 2 * kPage);
      EXPECT_EQ(live[static_cast<std::size_t>(Category::kActivation)], kPage);
      expect_sums(report);
      EXPECT_EQ(live_in(*report.record), std::vector{2 * kPage});
      const OomFixes fixes = find_fixes(report);
      EXPECT_TRUE(fixes.reproduced) << fixes.note;
      const auto unplanned =
          std::find_if(fixes.tried.begin(), fixes.tried.end(),
                       [](const OomFix& fix) { return fix.change == OomChange::kPlanning; });
      ASSERT_NE(unplanned, fixes.tried.end());
      EXPECT_TRUE(unplanned->verified) << unplanned->text;  // 2 and 6 of 8 pages
      const auto cap = std::find_if(fixes.tried.begin(), fixes.tried.end(), [](const OomFix& fix) {
        return fix.change == OomChange::kLargerCap;
      });
      ASSERT_NE(cap, fixes.tried.end());
      EXPECT_EQ(cap->bytes, kPage) << cap->text;
    }
    planner.free(first);
  }
}

// One in use beside a larger one of a plan that was dropped; and that alone, once the new plan's is
// dropped for want of room.
TEST(OomReport, ADroppedPlansArenaIsTold) {
  record::MemoryRecorder recorder(1000);
  const Fixture setup(counting(32), 16 * kPage, {.recorder = &recorder});
  PlanningAllocator planner(*setup.device, *setup.allocator, {.in_background = false});
  const StreamId c = planner.add_stream(*setup.stream_a);
  const auto get = [&](std::uint64_t pages) {
    return planner.allocate({pages * kPage, c, Category::kWorkspace, 0});
  };
  std::byte* held = nullptr;
  for (int i = 0; i < 6; ++i) {
    planner.begin_step();
    held = get(1);
    planner.free(get(7));
    if (i < 5) planner.free(held);
  }
  std::byte* first = nullptr;
  for (int i = 0; i < 8; ++i) {
    planner.begin_step();
    first = get(2);
    planner.free(planner.allocate({kPage, c, Category::kActivation, 0}));
    if (i < 7) planner.free(first);
  }
  ASSERT_EQ(planner.statistics().arena_bytes, 3 * kPage);
  const auto refused = [&](std::uint64_t pages) {
    try {
      get(pages);
    } catch (const OutOfMemoryReported& error) {
      return error.report;
    }
    ADD_FAILURE();
    return std::shared_ptr<const OomReport>();
  };
  const auto both = refused(10);
  EXPECT_EQ(both->arena_bytes, (8 + 3) * kPage);
  EXPECT_EQ(both->arena_live_bytes, (1 + 2) * kPage);
  expect_sums(*both);
  EXPECT_EQ(both->sites[0].name, "planned arena, not in use");
  EXPECT_EQ(both->sites[0].bytes, (7 + 1) * kPage);
  planner.free(first);
  const auto one = refused(10);  // dropped, and tried again: 8 of 16 pages are left
  EXPECT_EQ(one->arena_bytes, 8 * kPage);
  EXPECT_EQ(live_in(*one->record), std::vector{1 * kPage});
  expect_sums(*one);
  EXPECT_TRUE(find_fixes(*one).reproduced);
  planner.free(held);
}

// A run that fails, with sites and steps, to be repeated under other conditions. Returns what the
// last request found.
struct ThreeSteps {
  std::uint64_t cap_pages = 8;
  bool frees_before = false;  // the oldest block of site "saved" before the last request

  std::shared_ptr<const OomReport> go(record::MemoryRecorder* recorder) const {
    const Fixture setup(counting(64), cap_pages * kPage, {.recorder = recorder});
    const auto intern = [&](const char* name) {
      return recorder == nullptr ? 0 : recorder->intern(name);
    };
    std::byte* oldest = nullptr;
    for (int step = 0; step < 3; ++step) {
      setup.allocator->begin_step();
      std::byte* const saved =
          setup.get(2 * kPage, setup.a, Category::kActivation, intern("saved"));
      if (oldest == nullptr) oldest = saved;
      setup.allocator->free(setup.get(kPage, setup.a, Category::kWorkspace, intern("scratch")));
    }
    if (frees_before) setup.allocator->free(oldest);
    try {
      setup.get(3 * kPage, setup.b, Category::kGradient, intern("last"));
    } catch (const OutOfMemoryReported& error) {
      return error.report;
    }
    return nullptr;
  }
};

TEST(OomFixes, TheLeastCapIsTheOneThatHoldsWhenItIsApplied) {
  record::MemoryRecorder recorder(1000);
  const auto report = ThreeSteps{}.go(&recorder);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->cause, OomCause::kCap);
  const OomFixes fixes = find_fixes(*report);
  EXPECT_TRUE(fixes.reproduced) << fixes.note;
  const OomFix* const larger = find(fixes, OomChange::kLargerCap);
  ASSERT_NE(larger, nullptr);
  EXPECT_TRUE(larger->verified && larger->is_least);
  EXPECT_EQ(larger->setting, "cap of tier device");
  EXPECT_EQ(larger->bytes, kPage);
  const std::uint64_t cap_pages = std::stoull(larger->value) / kPage;
  EXPECT_EQ(cap_pages, 9u);
  EXPECT_EQ(larger->peak_reserved_bytes, cap_pages * kPage);
  EXPECT_EQ(ThreeSteps{.cap_pages = cap_pages}.go(nullptr), nullptr);
  EXPECT_NE(ThreeSteps{.cap_pages = cap_pages - 1}.go(nullptr), nullptr);
}

TEST(OomFixes, FreeingASiteHoldsWhenItIsApplied) {
  record::MemoryRecorder recorder(1000);
  const OomFixes fixes = find_fixes(*ThreeSteps{}.go(&recorder));
  const OomFix* const site = find(fixes, OomChange::kFreeSite);
  ASSERT_NE(site, nullptr);
  EXPECT_TRUE(site->verified && site->is_least);
  EXPECT_EQ(site->text,
            "free or offload 4.00 MiB before this point: the oldest 1 of 3 blocks of 'saved'");
  EXPECT_EQ(site->bytes, 2 * kPage);
  EXPECT_EQ(ThreeSteps{.frees_before = true}.go(nullptr), nullptr);
}

TEST(OomFixes, WhatDoesNotHelpIsNotSuggested) {
  record::MemoryRecorder recorder(1000);
  const auto report = ThreeSteps{}.go(&recorder);
  const OomFixes fixes = find_fixes(*report);
  for (const OomChange change : {OomChange::kGrowthSlack, OomChange::kRemapBudget,
                                 OomChange::kThreadCache, OomChange::kReleaseCached}) {
    const OomFix* const fix = find(fixes, change);
    ASSERT_NE(fix, nullptr);
    EXPECT_FALSE(fix->verified);
    EXPECT_EQ(oom_text(*report, &fixes).find(fix->text), std::string::npos);
  }
  // Verified ones first, by how much they ask for.
  const std::vector<OomFix> verified = fixes.verified();
  ASSERT_GE(verified.size(), 2u);
  EXPECT_EQ(verified.front().change, OomChange::kLargerCap);
  EXPECT_TRUE(std::is_sorted(verified.begin(), verified.end(),
                             [](const auto& x, const auto& y) { return x.change < y.change; }));
}

TEST(OomFixes, LettingAStreamMoveIsFoundAndHolds) {
  const auto run = [](record::MemoryRecorder* recorder, bool moves) {
    const Fixture setup(counting(4), UINT64_MAX, {.recorder = recorder}, moves);
    setup.allocator->free(setup.get(3 * kPage, setup.b));
    return moves ? (setup.get(2 * kPage, setup.a), nullptr) : setup.fail(2 * kPage, setup.a);
  };
  record::MemoryRecorder recorder(1000);
  const OomFixes fixes = find_fixes(*run(&recorder, false));
  ASSERT_FALSE(fixes.tried.empty());
  EXPECT_EQ(fixes.tried.front().change, OomChange::kMovable);
  EXPECT_TRUE(fixes.tried.front().verified);
  EXPECT_EQ(fixes.tried.front().text, "let the pages of stream 1 move");
  EXPECT_EQ(run(nullptr, true), nullptr);
}

TEST(OomFixes, ACategoryCapIsRaisedByWhatIsMissing) {
  record::MemoryRecorder recorder(1000);
  Fixture setup(counting(16), 12 * kPage,
                {.category = Category::kWorkspace, .recorder = &recorder});
  setup.ledger.set_category_cap(Tier::kDevice, Category::kWorkspace, 4 * kPage);
  setup.get(3 * kPage, setup.a);
  const OomFixes fixes = find_fixes(*setup.fail(2 * kPage, setup.a));
  const OomFix* const larger = find(fixes, OomChange::kLargerCap);
  ASSERT_NE(larger, nullptr);
  EXPECT_EQ(larger->setting, "cap of category workspace");
  EXPECT_EQ(larger->value, std::to_string(5 * kPage));
  setup.ledger.set_category_cap(Tier::kDevice, Category::kWorkspace, 5 * kPage);
  EXPECT_NE(setup.get(2 * kPage, setup.a), nullptr);
}

TEST(OomFixes, HoldWhereTheRecordWasCutAtItsFront) {
  record::MemoryRecorder recorder(12);
  const auto report = ThreeSteps{}.go(&recorder);
  ASSERT_GT(recorder.recorded_count(), 12u);
  const OomFixes fixes = find_fixes(*report);
  EXPECT_TRUE(fixes.reproduced) << fixes.note;
  EXPECT_EQ(find(fixes, OomChange::kLargerCap)->value, std::to_string(9 * kPage));
}

TEST(OomFixes, WithoutARecordTheNoteSaysHowToGetThem) {
  const auto report = ThreeSteps{}.go(nullptr);
  const OomFixes fixes = find_fixes(*report);
  EXPECT_TRUE(fixes.tried.empty());
  EXPECT_NE(fixes.note.find("MemoryRecorder"), std::string::npos);
  EXPECT_NE(oom_text(*report, &fixes).find("MemoryRecorder"), std::string::npos);
}

TEST(OomFixes, TheBoundOnOperationsEndsTheSearchAndIsTold) {
  record::MemoryRecorder recorder(1000);
  const OomFixes fixes = find_fixes(*ThreeSteps{}.go(&recorder), {.max_operations = 1});
  EXPECT_TRUE(fixes.reproduced);
  EXPECT_TRUE(fixes.tried.empty());
  EXPECT_NE(fixes.note.find("the search ended"), std::string::npos);
}

TEST(OomText, IsShortAndNamesWhatMatters) {
  record::MemoryRecorder recorder(10000);
  const Fixture setup(counting(64), 40 * kPage, {.recorder = &recorder});
  std::vector<std::byte*> blocks;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const std::uint32_t site = recorder.intern("layers." + std::to_string(i) + ".attention.qkv");
    setup.get(kPage + i * 512, i % 2 == 0 ? setup.a : setup.b,
              static_cast<Category>(i % kCategoryCount), site);
  }
  const auto report = setup.fail(16 * kPage, setup.a, Category::kActivation, 7);
  const OomFixes fixes = find_fixes(*report);
  for (const OomFix& fix : fixes.verified()) EXPECT_TRUE(fix.is_least) << fix.text;
  const std::string text = oom_text(*report, &fixes);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 45) << text;
  for (const char* part :
       {"cause: cap", "layers.29.attention.qkv", "24 others", "cap of tier device",
        "raise the cap of tier device to", "blocks of all that is live"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(OomJson, ReadsBackWithTheReportsNumbers) {
  record::MemoryRecorder recorder(1000);
  const auto report = ThreeSteps{}.go(&recorder);
  const OomFixes fixes = find_fixes(*report);
  const nlohmann::json event = nlohmann::json::parse(oom_json(*report, &fixes).dump());
  EXPECT_EQ(event.at("event"), "out_of_memory");
  EXPECT_EQ(event.at("cause"), "cap");
  EXPECT_EQ(event.at("request").at("bytes"), 3 * kPage);
  EXPECT_EQ(event.at("request").at("site"), "last");
  EXPECT_EQ(event.at("limits").at("tier_cap_bytes"), 8 * kPage);
  EXPECT_TRUE(event.at("limits").at("category_cap_bytes").is_null());
  EXPECT_EQ(event.at("totals").at("live_bytes"), report->live_bytes);
  std::uint64_t by_category = 0;
  for (const auto& [name, bytes] : event.at("live_by_category").items()) {
    by_category += bytes.get<std::uint64_t>();
  }
  EXPECT_EQ(by_category, report->live_bytes);
  EXPECT_EQ(event.at("live_by_site").size(), report->sites.size());
  EXPECT_EQ(event.at("streams").size(), report->streams.size());
  EXPECT_EQ(event.at("fixes").at("tried").size(), fixes.tried.size());
  EXPECT_EQ(event.at("fixes").at("tried").at(0).at("change"), "larger_cap");
  EXPECT_TRUE(oom_json(*report).at("fixes").is_null());
}

// "saved" on two streams, steps alike, then one more.
record::MemoryTrace fragmenting_trace() {
  record::MemoryTrace trace;
  trace.names = {"", "kept", "passing"};
  const auto alloc = [&](std::uint64_t bytes, std::uint64_t stream, std::uint32_t name) {
    const auto id = static_cast<std::uint32_t>(trace.allocations.size());
    trace.allocations.push_back(
        {.bytes = bytes, .stream = stream, .category = Category::kActivation, .name = name});
    trace.operations.push_back({record::TraceAction::kAlloc, id});
    return id;
  };
  std::vector<std::uint32_t> passing;
  for (int i = 0; i < 8; ++i) {
    alloc(kPage + kPage / 2, 70, 1);
    passing.push_back(alloc(kPage + kPage / 2, 70, 2));
  }
  for (const std::uint32_t id : passing) trace.operations.push_back({record::TraceAction::kFree, id});
  alloc(12 * kPage, 71, 2);
  return trace;
}

TEST(ExplainOutOfMemory, TellsOfATraceInItsOwnWordsAndFindsTheLeastCapacity) {
  const record::MemoryTrace trace = fragmenting_trace();
  EXPECT_FALSE(replay::explain_out_of_memory(trace, 64 * kPage).has_value());
  const auto explanation = replay::explain_out_of_memory(trace, 24 * kPage);
  ASSERT_TRUE(explanation.has_value());
  EXPECT_EQ(explanation->failed_operation, trace.operations.size() - 1);
  const OomReport& report = *explanation->report;
  EXPECT_EQ(report.cause, OomCause::kFragmentation) << report.proof;
  EXPECT_EQ(report.stream, 71u);
  EXPECT_EQ(report.site, "passing");
  ASSERT_EQ(report.sites.size(), 1u);
  EXPECT_EQ(report.sites[0].name, "kept");
  expect_sums(report);
  const OomFix* const larger = find(explanation->fixes, OomChange::kLargerDevice);
  ASSERT_NE(larger, nullptr);
  EXPECT_TRUE(larger->is_least);
  EXPECT_NE(oom_text(report, &explanation->fixes).find(larger->text), std::string::npos);
  const std::uint64_t enough = 24 * kPage + larger->bytes;
  EXPECT_FALSE(replay::explain_out_of_memory(trace, enough).has_value());
  EXPECT_TRUE(replay::explain_out_of_memory(trace, enough - kPage).has_value());
}

TEST(ExplainOutOfMemory, WhatIsHeldBeforeTheTraceMayNotFit) {
  record::MemoryTrace trace = fragmenting_trace();
  trace.initial_segments.push_back({.bytes = 8 * kPage, .blocks = {{.bytes = 8 * kPage}}});
  trace.initial_segments.back().blocks[0].state = record::BlockState::kAllocated;
  trace.initial_ids.push_back({static_cast<std::uint32_t>(trace.allocations.size())});
  trace.allocations.push_back({.bytes = 8 * kPage});
  const auto explanation = replay::explain_out_of_memory(trace, 4 * kPage);
  ASSERT_TRUE(explanation.has_value());
  EXPECT_EQ(explanation->failed_operation, 0u);
  EXPECT_TRUE(explanation->fixes.tried.empty());
  EXPECT_FALSE(explanation->fixes.note.empty());
}

}  // namespace
}  // namespace sluice::allocator
