// The report of an allocator that has planned arenas: it lists the blocks in them, and fixes are
// found in a simulation that has no arena.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "allocator/caching/planning_allocator.hpp"
#include "allocator/oom/oom_fixes.hpp"
#include "tests/allocator/oom/three_steps.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::allocator {
namespace {

// The live blocks at the end of a report's record, by address.
std::vector<std::uint64_t> live_in(const record::MemorySnapshot& record) {
  std::vector<std::uint64_t> bytes;
  for (const record::SnapshotSegment& segment : record.segments) {
    for (const record::SnapshotBlock& block : segment.blocks) {
      if (block.state == record::BlockState::kAllocated) bytes.push_back(block.requested_bytes);
    }
  }
  return bytes;
}

// The report lists the blocks of the arena instead of the arena. It does so from a record of all
// events and from a record of the last few.
TEST(ArenaReport, ListsTheBlocksOfAPlannedArena) {
  for (const std::size_t event_count : {1000, 6}) {
    record::MemoryRecorder recorder(event_count);
    const OomFixture setup(counting(16), 8 * kPage, {.recorder = &recorder});
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
    const auto error = testing::thrown_by<OutOfMemoryReported>([&] {
      planner.allocate({6 * kPage, c, Category::kGradient, 0});
    });
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
    const OomFix& unplanned = find_change(fixes, OomChange::kPlanning);
    EXPECT_TRUE(unplanned.verified) << unplanned.text;  // 2 and 6 of 8 pages
    EXPECT_EQ(find_change(fixes, OomChange::kLargerCap).bytes, kPage);
    planner.free(first);
  }
}

// First the new plan's arena stands next to the larger one of the dropped plan, in which a block is
// still held. Then the new arena is dropped for lack of room, and the old one stands alone.
TEST(ArenaReport, ListsTheArenaOfADroppedPlan) {
  record::MemoryRecorder recorder(1000);
  const OomFixture setup(counting(32), 16 * kPage, {.recorder = &recorder});
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

}  // namespace
}  // namespace sluice::allocator
