// Sequences worked by hand for each rule of the replica with fixed segments. Figures are in MiB
// unless a comment says otherwise.
#include <gtest/gtest.h>

#include "tests/tools/replay/peers/peer_script.hpp"
#include "tools/replay/peers/peers.hpp"

namespace sluice::replay {
namespace {

TEST(NativePeer, RequestsOfOneToTenMiBShareTwentyMiBSegments) {
  PeerScript peer(native_policy(), mebibytes({6, 6, 6, 6}));
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 6 * kMiB);
  EXPECT_EQ(peer.allocate(2), first + 12 * kMiB);
  EXPECT_EQ(peer.reserved(), 20 * kMiB);
  peer.allocate(3);  // 2 of 20 are left
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
  EXPECT_EQ(peer.counters().driver_allocations, 2u);
}

TEST(NativePeer, LargerOnesHaveSegmentsOfTheirOwn) {
  // Sizes from 10 MiB on are rounded up to 2 MiB: 12 -> 12, 10 -> 10, 10 + 1 byte -> 12.
  PeerScript peer(native_policy(), {{12 * kMiB}, {10 * kMiB}, {10 * kMiB + 1}});
  peer.allocate(0);
  EXPECT_EQ(peer.reserved(), 12 * kMiB);
  peer.allocate(1);
  EXPECT_EQ(peer.reserved(), 22 * kMiB);
  peer.allocate(2);
  EXPECT_EQ(peer.reserved(), 34 * kMiB);
}

TEST(NativePeer, ALargeBlockIsSplitWhereMoreThanOneMiBRemains) {
  for (const std::uint64_t over : {std::uint64_t{0}, std::uint64_t{512}}) {
    // 19 of a free 20 leave exactly 1; 19 MiB - 512 bytes leave more.
    PeerScript peer(native_policy(), {{6 * kMiB}, {19 * kMiB - over}, {kMiB + 512}});
    peer.allocate(0);
    peer.free(0);
    peer.allocate(1);
    EXPECT_EQ(peer.reserved(), 20 * kMiB);
    peer.allocate(2);
    EXPECT_EQ(peer.reserved(), over == 0 ? 40 * kMiB : 20 * kMiB);
  }
}

TEST(NativePeer, SmallBlocksAreSplitDownToTheirLastFiveHundredTwelveBytes) {
  PeerScript peer(native_policy(), {{kMiB}, {kMiB - 600}, {512}, {1}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + kMiB);  // 1 MiB - 512 rounded
  EXPECT_EQ(peer.allocate(2), first + 2 * kMiB - 512);
  EXPECT_EQ(peer.reserved(), 2 * kMiB);
  peer.allocate(3);
  EXPECT_EQ(peer.reserved(), 4 * kMiB);
}

TEST(NativePeer, BestFitIsBySizeThenAddress) {
  // Segments lie at their recorded addresses. The two free ones of 14 MiB are at 0x40000000 and
  // 0x60000000; the former is lower.
  PeerScript peer(native_policy(), {{.bytes = 14 * kMiB, .segment_address = 0x60000000},
                                    {.bytes = 14 * kMiB, .segment_address = 0x40000000},
                                    {.bytes = 16 * kMiB, .segment_address = 0x20000000},
                                    {.bytes = 13 * kMiB}});
  EXPECT_EQ(peer.allocate(0), 0x60000000u);
  EXPECT_EQ(peer.allocate(1), 0x40000000u);
  EXPECT_EQ(peer.allocate(2), 0x20000000u);
  for (std::uint32_t id : {0, 1, 2}) peer.free(id);
  EXPECT_EQ(peer.allocate(3), 0x40000000u);
}

TEST(NativePeer, ARecordedSegmentOverALiveOneGoesElsewhere) {
  PeerScript peer(native_policy(), {{.bytes = 14 * kMiB, .segment_address = 0x40000000},
                                    {.bytes = 14 * kMiB, .segment_address = 0x40200000},
                                    {.bytes = 14 * kMiB, .segment_address = 0x3fe00000}});
  EXPECT_EQ(peer.allocate(0), 0x40000000u);
  const std::uint64_t second = peer.allocate(1);
  EXPECT_GE(second, 0x40000000u + 14 * kMiB);
  EXPECT_NE(peer.allocate(2), 0x3fe00000u);
}

TEST(NativePeer, FreeNeighboursMergeAndPendingOnesDoNot) {
  // 20 = 6 + 6 + 8. With the middle pending, 12 do not fit; once it completes, all 20 are one.
  PeerScript peer(native_policy(), mebibytes({6, 6, 8, 19, 20}));
  const std::uint64_t first = peer.allocate(0);
  peer.allocate(1);
  peer.allocate(2);
  peer.free(1, true);
  peer.free(0);
  peer.free(2);
  EXPECT_NE(peer.allocate(3), first);
  EXPECT_EQ(peer.reserved(), 40 * kMiB);  // 19 -> 20
  peer.complete(1);
  EXPECT_EQ(peer.allocate(4), first);
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
}

TEST(NativePeer, StreamsAndPrivatePoolsShareNothing) {
  PeerScript peer(native_policy(), {{.bytes = 12 * kMiB, .stream = 1},
                                    {.bytes = 12 * kMiB, .stream = 2},
                                    {.bytes = 12 * kMiB, .stream = 1, .pool = 7},
                                    {.bytes = 12 * kMiB, .stream = 1, .pool = 7},
                                    {.bytes = 12 * kMiB, .stream = 1}});
  const std::uint64_t first = peer.allocate(0);
  peer.free(0);
  EXPECT_NE(peer.allocate(1), first);
  const std::uint64_t of_pool = peer.allocate(2);
  EXPECT_NE(of_pool, first);
  peer.free(2);
  EXPECT_EQ(peer.allocate(3), of_pool);
  EXPECT_EQ(peer.allocate(4), first);
  EXPECT_EQ(peer.reserved(), 36 * kMiB);
  for (std::uint32_t id : {1, 3, 4}) peer.free(id);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 12 * kMiB);  // the private pool's stays
  peer.policy().release_pool(8);
  EXPECT_EQ(peer.reserved(), 12 * kMiB);
  peer.policy().release_pool(7);
  EXPECT_EQ(peer.reserved(), 0u);
}

TEST(NativePeer, AFlushFreesWhollyFreeSegmentsAndWaitsForPendingOnes) {
  PeerScript peer(native_policy(), mebibytes({6, 6, 12, 14}));
  for (std::uint32_t id : {0, 1, 2, 3}) peer.allocate(id);
  peer.free(0);
  peer.free(2);
  peer.free(3, true);
  EXPECT_EQ(peer.reserved(), 46 * kMiB);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 20 * kMiB);  // 6 of its 20 are live
  EXPECT_EQ(peer.counters().flushes, 1u);
  EXPECT_EQ(peer.counters().synchronisations, 1u);
  peer.complete(3);  // had been waited for
  EXPECT_EQ(peer.counters().peak_reserved_bytes, 46 * kMiB);
}

TEST(NativePeer, MaxSplitSizeKeepsLargeBlocksWhole) {
  record::MemoryTrace trace;
  trace.max_split_bytes = 32 * kMiB;
  PeerScript peer(native_policy(), mebibytes({64, 16, 44, 45}), UINT64_MAX, trace);
  const std::uint64_t first = peer.allocate(0);
  peer.free(0);
  peer.allocate(1);  // below the limit: nothing from it on may serve
  EXPECT_EQ(peer.reserved(), 80 * kMiB);
  peer.allocate(2);  // 64 >= 44 + 20
  EXPECT_EQ(peer.reserved(), 124 * kMiB);
  EXPECT_EQ(peer.allocate(3), first);  // 64 < 45 + 20
  EXPECT_EQ(peer.reserved(), 124 * kMiB);
}

TEST(NativePeer, OutOfMemoryFlushesOnceAndTriesAgain) {
  PeerScript peer(native_policy(), mebibytes({20, 20, 30, 12}), 41 * kMiB);
  peer.allocate(0);
  peer.allocate(1);
  peer.free(0);
  peer.free(1, true);  // waited for by the flush
  EXPECT_TRUE(peer.try_allocate(2));
  EXPECT_EQ(peer.reserved(), 30 * kMiB);
  EXPECT_EQ(peer.counters().flushes, 1u);
  EXPECT_FALSE(peer.try_allocate(3));  // 30 + 12 > 41
  EXPECT_EQ(peer.counters().flushes, 2u);
}

TEST(NativePeer, OutOfMemoryUnderMaxSplitSizeReleasesJustEnough) {
  record::MemoryTrace trace;
  trace.max_split_bytes = 32 * kMiB;
  // No free block has 50. The largest, 48, is not enough alone, so 40 is freed, too, and 36 stays.
  // A flush is not needed.
  PeerScript peer(native_policy(), mebibytes({36, 40, 48, 50, 84}), 124 * kMiB, trace);
  for (std::uint32_t id : {0, 1, 2}) peer.allocate(id);
  for (std::uint32_t id : {0, 1, 2}) peer.free(id);
  EXPECT_TRUE(peer.try_allocate(3));
  EXPECT_EQ(peer.reserved(), (36 + 50) * kMiB);
  EXPECT_EQ(peer.counters().flushes, 0u);
  EXPECT_FALSE(peer.try_allocate(4));  // 36 goes, and is not enough: 50 + 84 > 124
  EXPECT_EQ(peer.reserved(), 50 * kMiB);
}

TEST(NativePeer, AnAllocationUnderACaptureDoesNotFlush) {
  PeerScript peer(native_policy(), {{.bytes = 20 * kMiB}, {.bytes = 30 * kMiB, .pool = 3}},
                  40 * kMiB);
  peer.allocate(0);
  peer.free(0);
  EXPECT_FALSE(peer.try_allocate(1));
  EXPECT_EQ(peer.counters().flushes, 0u);
}

TEST(NativePeer, BeginsWithTheBlocksOfTheTrace) {
  PeerScript peer(native_policy(), mebibytes({4, 10, 5, 16}), UINT64_MAX, trace_with_a_past(true));
  EXPECT_EQ(peer.reserved(), 20 * kMiB);
  EXPECT_EQ(peer.counters().driver_allocations, 0u);
  EXPECT_EQ(peer.allocate(2), kGiB + 4 * kMiB);  // not split: 1 remains
  peer.free(2);
  peer.complete(1);
  EXPECT_EQ(peer.allocate(3), kGiB + 4 * kMiB);  // 6 + 10
  peer.free(3);
  peer.free(0);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

}  // namespace
}  // namespace sluice::replay
