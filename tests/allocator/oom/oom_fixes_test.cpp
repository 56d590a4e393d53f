// Each fix that the search verifies also holds where it is really applied.
#include "allocator/oom/oom_fixes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "allocator/oom/oom_simulation.hpp"
#include "allocator/oom/oom_text.hpp"
#include "tests/allocator/oom/three_steps.hpp"

namespace sluice::allocator {
namespace {

TEST(OomFixes, TheLeastCapIsTheOneThatHoldsWhenItIsApplied) {
  record::MemoryRecorder recorder(1000);
  const auto report = ThreeSteps{}.go(&recorder);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->cause, OomCause::kCap);
  const OomFixes fixes = find_fixes(*report);
  EXPECT_TRUE(fixes.reproduced) << fixes.note;
  const OomFix& larger = find_change(fixes, OomChange::kLargerCap);
  EXPECT_TRUE(larger.verified && larger.is_least);
  EXPECT_EQ(larger.setting, "cap of tier device");
  EXPECT_EQ(larger.bytes, kPage);
  const std::uint64_t cap_pages = std::stoull(larger.value) / kPage;
  EXPECT_EQ(cap_pages, 9u);
  EXPECT_EQ(larger.peak_reserved_bytes, cap_pages * kPage);
  EXPECT_EQ(ThreeSteps{.cap_pages = cap_pages}.go(nullptr), nullptr);
  EXPECT_NE(ThreeSteps{.cap_pages = cap_pages - 1}.go(nullptr), nullptr);
}

TEST(OomFixes, FreeingASiteHoldsWhenItIsApplied) {
  record::MemoryRecorder recorder(1000);
  const OomFixes fixes = find_fixes(*ThreeSteps{}.go(&recorder));
  const OomFix& site = find_change(fixes, OomChange::kFreeSite);
  EXPECT_TRUE(site.verified && site.is_least);
  EXPECT_EQ(site.text,
            "free or offload 4.00 MiB before this point: the oldest 1 of 3 blocks of 'saved'");
  EXPECT_EQ(site.bytes, 2 * kPage);
  EXPECT_EQ(ThreeSteps{.frees_before = true}.go(nullptr), nullptr);
}

TEST(OomFixes, AChangeThatDoesNotHelpIsNotSuggested) {
  record::MemoryRecorder recorder(1000);
  const auto report = ThreeSteps{}.go(&recorder);
  const OomFixes fixes = find_fixes(*report);
  for (const OomChange change : {OomChange::kGrowthSlack, OomChange::kRemapBudget,
                                 OomChange::kThreadCache, OomChange::kReleaseCached}) {
    const OomFix& fix = find_change(fixes, change);
    EXPECT_FALSE(fix.verified);
    EXPECT_EQ(oom_text(*report, &fixes).find(fix.text), std::string::npos);
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
    const OomFixture setup(counting(4), UINT64_MAX, {.recorder = recorder}, moves);
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

TEST(OomFixes, ACategoryCapIsRaisedByTheMissingBytes) {
  record::MemoryRecorder recorder(1000);
  OomFixture setup(counting(16), 12 * kPage,
                   {.category = Category::kWorkspace, .recorder = &recorder});
  setup.ledger.set_category_cap(Tier::kDevice, Category::kWorkspace, 4 * kPage);
  setup.get(3 * kPage, setup.a);
  const OomFixes fixes = find_fixes(*setup.fail(2 * kPage, setup.a));
  const OomFix& larger = find_change(fixes, OomChange::kLargerCap);
  EXPECT_EQ(larger.setting, "cap of category workspace");
  EXPECT_EQ(larger.value, std::to_string(5 * kPage));
  setup.ledger.set_category_cap(Tier::kDevice, Category::kWorkspace, 5 * kPage);
  EXPECT_NE(setup.get(2 * kPage, setup.a), nullptr);
}

TEST(OomFixes, HoldForARecordThatIsCutAtItsFront) {
  record::MemoryRecorder recorder(12);
  const auto report = ThreeSteps{}.go(&recorder);
  ASSERT_EQ(recorder.events().size(), 12u);  // the ring is full
  const OomFixes fixes = find_fixes(*report);
  EXPECT_TRUE(fixes.reproduced) << fixes.note;
  EXPECT_EQ(find_change(fixes, OomChange::kLargerCap).value, std::to_string(9 * kPage));
}

TEST(OomFixes, WithoutARecordTheNoteNamesTheRecorder) {
  const auto report = ThreeSteps{}.go(nullptr);
  const OomFixes fixes = find_fixes(*report);
  EXPECT_TRUE(fixes.tried.empty());
  EXPECT_NE(fixes.note.find("MemoryRecorder"), std::string::npos);
  EXPECT_NE(oom_text(*report, &fixes).find("MemoryRecorder"), std::string::npos);
}

TEST(OomFixes, TheBoundOnOperationsEndsTheSearchAndIsNoted) {
  record::MemoryRecorder recorder(1000);
  const OomFixes fixes = find_fixes(*ThreeSteps{}.go(&recorder), {.max_operations = 1});
  EXPECT_TRUE(fixes.reproduced);
  EXPECT_TRUE(fixes.tried.empty());
  EXPECT_NE(fixes.note.find("the search ended"), std::string::npos);
}

// The first request that fails misses one page; a later one misses 42. Only a change with which the
// whole trace completes is verified, and the capacity is that of the later request.
TEST(OomFixes, AreVerifiedToTheEndOfTheTrace) {
  record::MemoryTrace trace;
  trace.names = {"", "first", "failing", "later"};
  for (const std::uint64_t pages : {6, 3, 50}) {
    const auto id = static_cast<std::uint32_t>(trace.allocations.size());
    trace.allocations.push_back({.bytes = pages * kPage, .name = id + 1});
    trace.operations.push_back({record::TraceAction::kAlloc, id});
    if (id == 1) {
      trace.operations.push_back({record::TraceAction::kFree, 0});
      trace.operations.push_back({record::TraceAction::kFree, 1});
    }
  }
  SimulatedAllocator settings;
  settings.capacity_bytes = 8 * kPage;
  const SimulationOutcome outcome = simulate(trace, settings);
  ASSERT_EQ(outcome.operation_count, 1u);
  const OomFixes fixes = find_fixes(*outcome.report, trace, 1);
  EXPECT_EQ(fixes.later_operation_count, 3u);
  const OomFix& larger = find_change(fixes, OomChange::kLargerDevice);
  EXPECT_TRUE(larger.verified && larger.is_least);
  EXPECT_EQ(larger.bytes, 42 * kPage) << larger.text;
  // With the first block freed early the failing request fits, and the later one does not.
  for (const OomChange change :
       {OomChange::kFreeSite, OomChange::kFreeCategory, OomChange::kFreeAny}) {
    const OomFix& fix = find_change(fixes, change);
    EXPECT_FALSE(fix.verified) << fix.text;
  }
  const std::string text = oom_text(*outcome.report, &fixes);
  EXPECT_NE(text.find("simulated to the end of the trace, 3 operations after this request"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("84.0 MiB more"), std::string::npos) << text;
}

// A block that is freed early is freed again by the trace, after the request that failed.
TEST(OomFixes, ABlockFreedEarlyMayBeFreedAgainByTheTrace) {
  record::MemoryTrace trace;
  trace.names = {"", "kept"};
  trace.allocations = {{.bytes = 6 * kPage, .name = 1}, {.bytes = 3 * kPage}};
  trace.operations = {{record::TraceAction::kAlloc, 0},
                      {record::TraceAction::kAlloc, 1},
                      {record::TraceAction::kFree, 0},
                      {record::TraceAction::kFree, 1}};
  SimulatedAllocator settings;
  settings.capacity_bytes = 8 * kPage;
  const OomFixes fixes = find_fixes(*simulate(trace, settings).report, trace, 1);
  const OomFix& site = find_change(fixes, OomChange::kFreeSite);
  EXPECT_TRUE(site.verified);
}

}  // namespace
}  // namespace sluice::allocator
