// Sequences worked by hand for each rule of the replica with expandable segments. Figures are in
// MiB unless a comment says otherwise.
#include <gtest/gtest.h>

#include "tests/tools/replay/peers/peer_script.hpp"
#include "tools/replay/peers/peers.hpp"

namespace sluice::replay {
namespace {

TEST(ExpandablePeer, MapsWholePagesAndGrowsInPlace) {
  PeerScript peer(expandable_policy(), {{12 * kMiB}, {12 * kMiB}, {7 * kMiB}, {1}, {512}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.reserved(), 20 * kMiB);
  EXPECT_EQ(peer.allocate(1), first + 12 * kMiB);  // the 8 left and 4 of another page
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
  EXPECT_EQ(peer.allocate(2), first + 24 * kMiB);
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
  const std::uint64_t small = peer.allocate(3);  // pages of 2 in the small pool
  EXPECT_EQ(peer.allocate(4), small + 512);
  EXPECT_EQ(peer.reserved(), 42 * kMiB);
  EXPECT_EQ(peer.counters().driver_allocations, 3u);
}

TEST(ExpandablePeer, AFreeEndCountsTowardsTheRequest) {
  PeerScript peer(expandable_policy(), mebibytes({5, 30}));
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 5 * kMiB);  // 15 are free, 15 more: one page
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
}

TEST(ExpandablePeer, AFlushUnmapsWholePagesOnly) {
  // Pages end at 20 and 40; [12, 24) is live, so neither is free as a whole.
  PeerScript peer(expandable_policy(), mebibytes({12, 12}));
  peer.allocate(0);
  peer.allocate(1);
  peer.free(0);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
  EXPECT_EQ(peer.counters().synchronisations, 1u);
  peer.free(1);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
  EXPECT_EQ(peer.counters().synchronisations, 3u);  // the flush, and the stream to unmap
}

TEST(ExpandablePeer, AGapIsMappedAgainWhereTheRequestFits) {
  PeerScript peer(expandable_policy(), mebibytes({20, 20, 20, 30, 15, 14}));
  const std::uint64_t first = peer.allocate(0);
  peer.allocate(1);
  peer.allocate(2);
  peer.free(1);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
  EXPECT_EQ(peer.allocate(3), first + 60 * kMiB);  // the gap of 20 is too short: two pages behind
  EXPECT_EQ(peer.reserved(), 80 * kMiB);
  EXPECT_EQ(peer.allocate(4), first + 20 * kMiB);
  EXPECT_EQ(peer.reserved(), 100 * kMiB);
  // 5 are free in the gap's page and 10 at the end. The end grows.
  EXPECT_EQ(peer.allocate(5), first + 90 * kMiB);
  EXPECT_EQ(peer.reserved(), 120 * kMiB);
}

TEST(ExpandablePeer, ABlockThatCanGrowIsTheLastResort) {
  // [0, 45) free, [45, 55) live, [55, 60) free and able to grow: 4 comes from the 45.
  PeerScript peer(expandable_policy(), mebibytes({45, 10, 4}));
  const std::uint64_t first = peer.allocate(0);
  peer.allocate(1);
  EXPECT_EQ(peer.reserved(), 60 * kMiB);
  peer.free(0);
  EXPECT_EQ(peer.allocate(2), first);
}

TEST(ExpandablePeer, LargeBlocksAreSplitDownToFiveHundredTwelveBytes) {
  PeerScript peer(expandable_policy(), {{20 * kMiB - kMiB - 512}, {kMiB + 512}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 19 * kMiB - 512);
  EXPECT_EQ(peer.reserved(), 20 * kMiB);
}

TEST(ExpandablePeer, OutOfMemoryUnmapsOtherStreams) {
  PeerScript peer(expandable_policy(),
                  {{.bytes = 20 * kMiB, .stream = 1}, {.bytes = 50 * kMiB, .stream = 2}},
                  60 * kMiB);
  peer.allocate(0);
  peer.free(0);
  EXPECT_TRUE(peer.try_allocate(1));  // 20 + 60 > 60 at first
  EXPECT_EQ(peer.reserved(), 60 * kMiB);
  EXPECT_EQ(peer.counters().flushes, 1u);
  EXPECT_EQ(peer.counters().peak_reserved_bytes, 60 * kMiB);
}

TEST(ExpandablePeer, GrowsTheSegmentThatTheTraceBeginsWith) {
  PeerScript peer(expandable_policy(), mebibytes({4, 10, 6, 21}), UINT64_MAX,
                  trace_with_a_past(true));
  EXPECT_EQ(peer.allocate(2), kGiB + 4 * kMiB);
  EXPECT_EQ(peer.allocate(3), kGiB + 20 * kMiB);
  EXPECT_EQ(peer.reserved(), 60 * kMiB);
  peer.complete(1);
  for (std::uint32_t id : {0, 2, 3}) peer.free(id);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

TEST(ExpandablePeer, RangesOfOneSegmentAreFoundAgain) {
  // Two mapped ranges of 20, at 0 and 60, all live. Once the second is free, the
  // gap of 40 before it and its own 20 serve 50.
  record::MemoryTrace trace;
  for (const std::uint64_t at : {kGiB, kGiB + 60 * kMiB}) {
    trace.initial_segments.push_back(
        {.address = at,
         .bytes = 20 * kMiB,
         .is_expandable = true,
         .blocks = {{at, 20 * kMiB, 20 * kMiB, record::BlockState::kAllocated}}});
  }
  trace.initial_ids = {{0}, {1}};
  PeerScript peer(expandable_policy(), mebibytes({20, 20, 50, 15}), UINT64_MAX, trace);
  peer.free(1);
  EXPECT_EQ(peer.allocate(2), kGiB + 20 * kMiB);
  EXPECT_EQ(peer.reserved(), 80 * kMiB);
  EXPECT_EQ(peer.allocate(3), kGiB + 70 * kMiB);
  EXPECT_EQ(peer.reserved(), 100 * kMiB);
}

TEST(ExpandablePeer, FixedSegmentsOfThePastStayInUse) {
  PeerScript peer(expandable_policy(), mebibytes({4, 10, 6, 21}), UINT64_MAX,
                  trace_with_a_past(false));
  EXPECT_EQ(peer.allocate(2), kGiB + 4 * kMiB);
  EXPECT_NE(peer.allocate(3), kGiB + 20 * kMiB);
  peer.complete(1);
  for (std::uint32_t id : {0, 2, 3}) peer.free(id);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

}  // namespace
}  // namespace sluice::replay
