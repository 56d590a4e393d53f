#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "allocator/packing/arena_packing.hpp"
#include "base/error.hpp"
#include "base/rng.hpp"
#include "tests/allocator/packing/lifetimes_overlap.hpp"

namespace sluice::packing {
namespace {

void expect_valid(const std::vector<Lifetime>& items, const SlotAssignment& assignment) {
  ASSERT_EQ(assignment.slots.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::set<std::uint32_t> own(assignment.slots[i].begin(), assignment.slots[i].end());
    EXPECT_EQ(own.size(), items[i].bytes);
    EXPECT_EQ(assignment.slots[i].size(), items[i].bytes);
    for (const std::uint32_t slot : own) EXPECT_LT(slot, assignment.slot_count);
    for (std::size_t j = 0; j < i; ++j) {
      if (!lifetimes_overlap(items[i], items[j])) continue;
      for (const std::uint32_t slot : assignment.slots[j]) EXPECT_EQ(own.count(slot), 0u);
    }
  }
}

TEST(SlotAssignment, TakesAsManySlotsAsTheDeepestOverlap) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const CounterRng rng(seed, stream_of("slots"));
    std::vector<Lifetime> items;
    const std::uint64_t count = 1 + rng.below(0, 40);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t lower = rng.below(10 + 3 * i, 30);
      items.push_back({lower, lower + 1 + rng.below(11 + 3 * i, 12), 1 + rng.below(12 + 3 * i, 4)});
    }
    const SlotAssignment assignment = assign_slots(items);
    expect_valid(items, assignment);
    EXPECT_EQ(assignment.slot_count, most_live_bytes(items)) << "seed " << seed;
  }
}

// Two slots suffice; a slot just freed is not the one taken next.
TEST(SlotAssignment, ReusesTheSlotThatHasBeenFreeLongest) {
  const std::vector<Lifetime> items{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}, {3, 4, 1}, {10, 11, 2}};
  const SlotAssignment assignment = assign_slots(items);
  EXPECT_EQ(assignment.slot_count, 2u);
  for (std::size_t i = 0; i + 1 < 4; ++i) {
    EXPECT_NE(assignment.slots[i], assignment.slots[i + 1]) << i;
  }
}

TEST(SlotAssignment, NothingNeedsNoSlot) {
  const SlotAssignment assignment = assign_slots({});
  EXPECT_EQ(assignment.slot_count, 0u);
  EXPECT_TRUE(assignment.slots.empty());
}

TEST(SlotAssignment, RefusesBrokenLifetimes) {
  EXPECT_THROW(static_cast<void>(assign_slots(std::vector<Lifetime>{{2, 2, 1}})), InternalError);
  EXPECT_THROW(static_cast<void>(assign_slots(std::vector<Lifetime>{{2, 3, 0}})), InternalError);
}

}  // namespace
}  // namespace sluice::packing
