// Hand-worked sequences for each rule of each replica; figures in MiB unless they say otherwise.
#include <gtest/gtest.h>

#include <memory>

#include "tests/tools/bench/peer_script.hpp"
#include "tools/replay/peers/peers.hpp"
#include "tools/replay/peers/torch_sizes.hpp"

namespace sluice::testing {
namespace {

TEST(TorchRounding, FiveHundredTwelveBytesUnlessDivided) {
  record::MemoryTrace trace;
  const replay::TorchRounding plain(trace);
  EXPECT_EQ(plain(1), 512u);
  EXPECT_EQ(plain(512), 512u);
  EXPECT_EQ(plain(513), 1024u);
  EXPECT_EQ(plain(5 * kMiB + 1), 5 * kMiB + 512);
  trace.roundup_power2_divisions = 4;
  const replay::TorchRounding divided(trace);
  // At most 512 * 4 bytes: by 512 still. 3000 lies between 2048 and 4096, steps of 512; 5 MiB + 1
  // between 4 and 8 MiB, steps of 1 MiB.
  EXPECT_EQ(divided(2048), 2048u);
  EXPECT_EQ(divided(1025), 1536u);
  EXPECT_EQ(divided(3000), 3072u);
  EXPECT_EQ(divided(5 * kMiB + 1), 6 * kMiB);
  EXPECT_EQ(divided(8 * kMiB), 8 * kMiB);
  // A table by powers of two from 1 MiB: below 1 MiB as its first entry, from 32 GiB its last.
  trace.roundup_divisions_by_power.assign(16, 0);
  trace.roundup_divisions_by_power[0] = 2;
  trace.roundup_divisions_by_power[3] = 8;
  trace.roundup_divisions_by_power[15] = 1;
  const replay::TorchRounding table(trace);
  EXPECT_EQ(table(kMiB + 1), kMiB + kMiB / 2);
  EXPECT_EQ(table(600 * 1024), 768u * 1024);  // between 512 and 1024 KiB, one step of 256
  EXPECT_EQ(table(2 * kMiB + 1), 2 * kMiB + 512);
  EXPECT_EQ(table(8 * kMiB + 1), 9 * kMiB);
  EXPECT_EQ(table((std::uint64_t{1} << 40) + 1), (std::uint64_t{1} << 40) + 512);
}

TEST(NativePeer, RequestsOfOneToTenMiBShareTwentyMiBSegments) {
  PeerScript peer(replay::native_policy(), mebibytes({6, 6, 6, 6}));
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 6 * kMiB);
  EXPECT_EQ(peer.allocate(2), first + 12 * kMiB);
  EXPECT_EQ(peer.reserved(), 20 * kMiB);
  peer.allocate(3);  // 2 of 20 are left
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
  EXPECT_EQ(peer.counters().driver_allocations, 2u);
}

TEST(NativePeer, LargerOnesHaveSegmentsOfTheirOwn) {
  // From 10 MiB on, to the next 2 MiB: 12 -> 12, 10 -> 10, 10 + 1 byte -> 12.
  PeerScript peer(replay::native_policy(), {{12 * kMiB}, {10 * kMiB}, {10 * kMiB + 1}});
  peer.allocate(0);
  EXPECT_EQ(peer.reserved(), 12 * kMiB);
  peer.allocate(1);
  EXPECT_EQ(peer.reserved(), 22 * kMiB);
  peer.allocate(2);
  EXPECT_EQ(peer.reserved(), 34 * kMiB);
}

TEST(NativePeer, ALargeBlockIsSplitWhereMoreThanOneMiBRemains) {
  for (const std::uint64_t over : {std::uint64_t{0}, std::uint64_t{512}}) {
    // 19 of a free 20 leaves 1, not more; 19 MiB - 512 bytes leaves more.
    PeerScript peer(replay::native_policy(), {{6 * kMiB}, {19 * kMiB - over}, {kMiB + 512}});
    peer.allocate(0);
    peer.free(0);
    peer.allocate(1);
    EXPECT_EQ(peer.reserved(), 20 * kMiB);
    peer.allocate(2);
    EXPECT_EQ(peer.reserved(), over == 0 ? 40 * kMiB : 20 * kMiB);
  }
}

TEST(NativePeer, SmallBlocksAreSplitDownToTheirLastFiveHundredTwelveBytes) {
  PeerScript peer(replay::native_policy(), {{kMiB}, {kMiB - 600}, {512}, {1}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + kMiB);  // 1 MiB - 512 rounded
  EXPECT_EQ(peer.allocate(2), first + 2 * kMiB - 512);
  EXPECT_EQ(peer.reserved(), 2 * kMiB);
  peer.allocate(3);
  EXPECT_EQ(peer.reserved(), 4 * kMiB);
}

TEST(NativePeer, BestFitIsBySizeThenAddress) {
  // Segments as recorded; the 14s are free, the one at 0x40000000 has the lowest address of them.
  PeerScript peer(replay::native_policy(), {{.bytes = 14 * kMiB, .segment_address = 0x60000000},
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
  PeerScript peer(replay::native_policy(), {{.bytes = 14 * kMiB, .segment_address = 0x40000000},
                                            {.bytes = 14 * kMiB, .segment_address = 0x40200000},
                                            {.bytes = 14 * kMiB, .segment_address = 0x3fe00000}});
  EXPECT_EQ(peer.allocate(0), 0x40000000u);
  const std::uint64_t second = peer.allocate(1);
  EXPECT_GE(second, 0x40000000u + 14 * kMiB);
  EXPECT_NE(peer.allocate(2), 0x3fe00000u);
}

TEST(NativePeer, FreeNeighboursMergeAndPendingOnesDoNot) {
  // 20 = 6 + 6 + 8. With the middle pending, 12 do not fit; once it completes, all 20 are one.
  PeerScript peer(replay::native_policy(), mebibytes({6, 6, 8, 19, 20}));
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
  PeerScript peer(replay::native_policy(), {{.bytes = 12 * kMiB, .stream = 1},
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
}

TEST(NativePeer, AFlushGivesBackWhollyFreeSegmentsAndWaitsForPendingOnes) {
  PeerScript peer(replay::native_policy(), mebibytes({6, 6, 12, 14}));
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
  PeerScript peer(replay::native_policy(), mebibytes({64, 16, 44, 45}), UINT64_MAX, trace);
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
  PeerScript peer(replay::native_policy(), mebibytes({20, 20, 30, 12}), 41 * kMiB);
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
  // 50 needs a free block of 50: none; the largest, 48, is not enough alone, so 40 goes too; 36
  // stays. A flush is not needed.
  PeerScript peer(replay::native_policy(), mebibytes({36, 40, 48, 50, 84}), 124 * kMiB, trace);
  for (std::uint32_t id : {0, 1, 2}) peer.allocate(id);
  for (std::uint32_t id : {0, 1, 2}) peer.free(id);
  EXPECT_TRUE(peer.try_allocate(3));
  EXPECT_EQ(peer.reserved(), (36 + 50) * kMiB);
  EXPECT_EQ(peer.counters().flushes, 0u);
  EXPECT_FALSE(peer.try_allocate(4));  // 36 goes, and is not enough: 50 + 84 > 124
  EXPECT_EQ(peer.reserved(), 50 * kMiB);
}

TEST(NativePeer, AnAllocationUnderACaptureDoesNotFlush) {
  PeerScript peer(replay::native_policy(), {{.bytes = 20 * kMiB}, {.bytes = 30 * kMiB, .pool = 3}},
                  40 * kMiB);
  peer.allocate(0);
  peer.free(0);
  EXPECT_FALSE(peer.try_allocate(1));
  EXPECT_EQ(peer.counters().flushes, 0u);
}

// A 20 MiB segment at 1 GiB: 4 live (id 0), 6 free, 10 pending (id 1).
record::MemoryTrace trace_with_a_past(bool is_expandable) {
  record::MemoryTrace trace;
  trace.initial_segments.push_back(
      {.address = kGiB,
       .bytes = 20 * kMiB,
       .is_expandable = is_expandable,
       .blocks = {{kGiB, 4 * kMiB, 4 * kMiB, record::BlockState::kAllocated},
                  {kGiB + 4 * kMiB, 6 * kMiB, 0, record::BlockState::kFree},
                  {kGiB + 10 * kMiB, 10 * kMiB, 10 * kMiB, record::BlockState::kPendingFree}}});
  trace.initial_ids = {{0, UINT32_MAX, 1}};
  return trace;
}

TEST(NativePeer, BeginsWithWhatTheTraceHolds) {
  PeerScript peer(replay::native_policy(), mebibytes({4, 10, 5, 16}), UINT64_MAX,
                  trace_with_a_past(true));
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

TEST(ExpandablePeer, MapsWholePagesAndGrowsInPlace) {
  PeerScript peer(replay::expandable_policy(), {{12 * kMiB}, {12 * kMiB}, {7 * kMiB}, {1}, {512}});
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

TEST(ExpandablePeer, AFreeEndCountsTowardsWhatIsMapped) {
  PeerScript peer(replay::expandable_policy(), mebibytes({5, 30}));
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 5 * kMiB);  // 15 are free, 15 more: one page
  EXPECT_EQ(peer.reserved(), 40 * kMiB);
}

TEST(ExpandablePeer, AFlushUnmapsWholePagesOnly) {
  // Pages end at 20 and 40; [12, 24) is live, so neither is free as a whole.
  PeerScript peer(replay::expandable_policy(), mebibytes({12, 12}));
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
  PeerScript peer(replay::expandable_policy(), mebibytes({20, 20, 20, 30, 15, 14}));
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
  // Free: 5 in the gap's page, 10 at the end. The end grows.
  EXPECT_EQ(peer.allocate(5), first + 90 * kMiB);
  EXPECT_EQ(peer.reserved(), 120 * kMiB);
}

TEST(ExpandablePeer, ABlockThatCanGrowIsTheLastResort) {
  // [0, 45) free, [45, 55) live, [55, 60) free and able to grow: 4 comes from the 45.
  PeerScript peer(replay::expandable_policy(), mebibytes({45, 10, 4}));
  const std::uint64_t first = peer.allocate(0);
  peer.allocate(1);
  EXPECT_EQ(peer.reserved(), 60 * kMiB);
  peer.free(0);
  EXPECT_EQ(peer.allocate(2), first);
}

TEST(ExpandablePeer, LargeBlocksAreSplitDownToFiveHundredTwelveBytes) {
  PeerScript peer(replay::expandable_policy(), {{20 * kMiB - kMiB - 512}, {kMiB + 512}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 19 * kMiB - 512);
  EXPECT_EQ(peer.reserved(), 20 * kMiB);
}

TEST(ExpandablePeer, OutOfMemoryUnmapsOtherStreams) {
  PeerScript peer(replay::expandable_policy(),
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
  PeerScript peer(replay::expandable_policy(), mebibytes({4, 10, 6, 21}), UINT64_MAX,
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
  PeerScript peer(replay::expandable_policy(), mebibytes({20, 20, 50, 15}), UINT64_MAX, trace);
  peer.free(1);
  EXPECT_EQ(peer.allocate(2), kGiB + 20 * kMiB);
  EXPECT_EQ(peer.reserved(), 80 * kMiB);
  EXPECT_EQ(peer.allocate(3), kGiB + 70 * kMiB);
  EXPECT_EQ(peer.reserved(), 100 * kMiB);
}

TEST(ExpandablePeer, FixedSegmentsOfThePastStayInUse) {
  PeerScript peer(replay::expandable_policy(), mebibytes({4, 10, 6, 21}), UINT64_MAX,
                  trace_with_a_past(false));
  EXPECT_EQ(peer.allocate(2), kGiB + 4 * kMiB);
  EXPECT_NE(peer.allocate(3), kGiB + 20 * kMiB);
  peer.complete(1);
  for (std::uint32_t id : {0, 2, 3}) peer.free(id);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

TEST(BfcPeer, RegionsDouble) {
  PeerScript peer(replay::bfc_policy(), mebibytes({1, 2, 20, 12}));
  peer.allocate(0);  // 2, next 4
  EXPECT_EQ(peer.reserved(), 2 * kMiB);
  peer.allocate(1);  // 1 is left of 2: another 4, next 8
  EXPECT_EQ(peer.reserved(), 6 * kMiB);
  peer.allocate(2);  // 8 doubles to 32, and stays, for it grew to serve
  EXPECT_EQ(peer.reserved(), 38 * kMiB);
  // 12 of 32 were left? No: 32 < 2 * 20, so the chunk went out whole. Another 32.
  peer.allocate(3);
  EXPECT_EQ(peer.reserved(), 70 * kMiB);
}

TEST(BfcPeer, AChunkIsSplitFromTwiceTheSizeOrWith128MiBToSpare) {
  PeerScript peer(replay::bfc_policy(), mebibytes({200, 130, 56}));
  const std::uint64_t first = peer.allocate(0);  // 256: 56 to spare, not split
  peer.free(0);
  EXPECT_EQ(peer.allocate(1), first);  // 256 < 260 and 126 to spare: whole
  peer.allocate(2);
  EXPECT_EQ(peer.reserved(), 512 * kMiB);

  PeerScript other(replay::bfc_policy(), mebibytes({1000, 850, 100}));
  const std::uint64_t begin = other.allocate(0);  // 1024
  other.free(0);
  EXPECT_EQ(other.allocate(1), begin);               // 174 to spare: split
  EXPECT_EQ(other.allocate(2), begin + 850 * kMiB);  // 174 < 200, 74 to spare: whole
  EXPECT_EQ(other.reserved(), kGiB);
}

TEST(BfcPeer, FreeChunksOfARegionCoalesceAndServeEveryStream) {
  PeerScript peer(
      replay::bfc_policy(),
      {{.bytes = 256, .stream = 1}, {.bytes = 1, .stream = 2}, {.bytes = 2 * kMiB, .stream = 3}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.allocate(1), first + 256);
  peer.free(0);
  peer.free(1);
  EXPECT_EQ(peer.allocate(2), first);
  EXPECT_EQ(peer.reserved(), 2 * kMiB);
  EXPECT_EQ(peer.counters().event_waits, 0u);
}

TEST(BfcPeer, OutOfMemoryGivesBackFreeRegionsAndWaits) {
  PeerScript peer(replay::bfc_policy(), mebibytes({2, 4, 5, 6}), 6 * kMiB);
  peer.allocate(0);
  peer.allocate(1);
  EXPECT_EQ(peer.reserved(), 6 * kMiB);
  peer.free(0);
  peer.free(1);
  EXPECT_TRUE(peer.try_allocate(2));  // 2 and 4 go; a region of the 6 there are
  EXPECT_EQ(peer.reserved(), 6 * kMiB);
  EXPECT_EQ(peer.counters().flushes, 1u);
  EXPECT_EQ(peer.counters().driver_allocations, 3u);
  peer.free(2, true);
  EXPECT_TRUE(peer.try_allocate(3));
  EXPECT_EQ(peer.counters().synchronisations, 2u);
  EXPECT_EQ(peer.counters().flushes, 1u);
}

TEST(RmmPoolPeer, ThePoolDoubles) {
  PeerScript peer(replay::rmm_pool_policy(), {{kMiB}, {1}, {3 * kMiB}, {3 * kMiB}});
  const std::uint64_t first = peer.allocate(0);
  EXPECT_EQ(peer.reserved(), kMiB);
  EXPECT_NE(peer.allocate(1), first);  // 256 bytes; as much again as there was
  EXPECT_EQ(peer.reserved(), 2 * kMiB);
  peer.allocate(2);
  EXPECT_EQ(peer.reserved(), 5 * kMiB);
  peer.allocate(3);
  EXPECT_EQ(peer.reserved(), 10 * kMiB);
}

TEST(RmmPoolPeer, HalfIsTriedWhereTheDeviceRefuses) {
  PeerScript peer(replay::rmm_pool_policy(), {{2 * kMiB}, {512 * 1024}, {2 * kMiB}}, 3 * kMiB);
  peer.allocate(0);
  peer.allocate(1);  // 2 are refused, 1 is given
  EXPECT_EQ(peer.reserved(), 3 * kMiB);
  EXPECT_FALSE(peer.try_allocate(2));
}

TEST(RmmPoolPeer, TheSmallestThatFitsAndNoJoinAcrossUpstreamBlocks) {
  // Upstream blocks of 8, 8, 16: ids 0 | 1 | 2 (12) and 3 (4).
  PeerScript peer(replay::rmm_pool_policy(), mebibytes({8, 8, 12, 4, 3, 16}));
  for (std::uint32_t id : {0, 1, 2}) peer.allocate(id);
  const std::uint64_t fourth = peer.allocate(3);
  EXPECT_EQ(peer.reserved(), 32 * kMiB);
  for (std::uint32_t id : {0, 1, 3}) peer.free(id);
  EXPECT_EQ(peer.allocate(4), fourth);  // 4 is nearer than 8
  // 8 and 8 lie side by side in the simulated addresses, and stay two.
  peer.allocate(5);
  EXPECT_EQ(peer.reserved(), 64 * kMiB);
}

TEST(RmmPoolPeer, AnotherStreamsBlockCostsAWaitAndItsRestStaysThere) {
  PeerScript peer(replay::rmm_pool_policy(), {{.bytes = 8 * kMiB, .stream = 1},
                                              {.bytes = 3 * kMiB, .stream = 2},
                                              {.bytes = 5 * kMiB, .stream = 1},
                                              {.bytes = kMiB, .stream = 2}});
  const std::uint64_t first = peer.allocate(0);
  peer.free(0);
  EXPECT_EQ(peer.allocate(1), first);
  EXPECT_EQ(peer.counters().event_waits, 1u);
  EXPECT_EQ(peer.allocate(2), first + 3 * kMiB);
  EXPECT_EQ(peer.counters().event_waits, 1u);
  EXPECT_EQ(peer.reserved(), 8 * kMiB);
}

TEST(RmmPoolPeer, ListsAreJoinedBeforeThePoolGrows) {
  // One block of 8: 4 freed on stream 1, 4 on stream 2. Stream 3 asks for 8: both lists join its
  // own, one wait each.
  PeerScript peer(replay::rmm_pool_policy(), {{.bytes = 8 * kMiB, .stream = 1},
                                              {.bytes = 4 * kMiB, .stream = 2},
                                              {.bytes = 4 * kMiB, .stream = 1},
                                              {.bytes = 8 * kMiB, .stream = 3}});
  const std::uint64_t first = peer.allocate(0);
  peer.free(0);
  peer.allocate(1);
  peer.allocate(2);
  EXPECT_EQ(peer.counters().event_waits, 1u);
  peer.free(1);
  peer.free(2);
  EXPECT_EQ(peer.allocate(3), first);
  EXPECT_EQ(peer.counters().event_waits, 3u);
  EXPECT_EQ(peer.reserved(), 8 * kMiB);
}

TEST(GmLakePeer, SizesAreMultiplesOfTheHandle) {
  PeerScript peer(replay::gmlake_policy(), {{3 * kMiB}, {16 * kMiB}, {kMiB}, {kMiB}});
  const std::uint64_t first = peer.allocate(0);  // 4 of a segment of 20: ten handles
  EXPECT_EQ(peer.counters().driver_allocations, 10u);
  EXPECT_EQ(peer.allocate(1), first + 4 * kMiB);
  const std::uint64_t small = peer.allocate(2);
  EXPECT_EQ(peer.allocate(3), small + kMiB);
  EXPECT_EQ(peer.counters().driver_allocations, 11u);
  EXPECT_EQ(peer.reserved(), 22 * kMiB);
}

TEST(GmLakePeer, FreeBlocksAreStitchedFromHalfAGiBOn) {
  PeerScript peer(replay::gmlake_policy(), mebibytes({300, 300, 510, 600, 600, 300, 600}));
  peer.allocate(0);
  peer.allocate(1);
  peer.free(0);
  peer.free(1);
  peer.allocate(2);  // below 512: new
  EXPECT_EQ(peer.reserved(), 1110 * kMiB);
  peer.free(2);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

TEST(GmLakePeer, AStitchedBlockServesAgainWhileItsPagesAreFree) {
  PeerScript peer(replay::gmlake_policy(), mebibytes({300, 300, 600, 600, 300, 600}));
  const std::uint64_t first = peer.allocate(0);
  peer.allocate(1);
  peer.free(0);
  peer.free(1);
  const std::uint64_t stitched = peer.allocate(2);
  EXPECT_EQ(peer.reserved(), 600 * kMiB);
  EXPECT_EQ(peer.counters().remaps, 300u);  // 600 / 2
  peer.free(2);
  EXPECT_EQ(peer.allocate(3), stitched);
  EXPECT_EQ(peer.counters().remaps, 300u);
  peer.free(3);
  EXPECT_EQ(peer.allocate(4), first);  // one of its parts
  peer.allocate(5);
  EXPECT_EQ(peer.reserved(), 1200 * kMiB);
  EXPECT_EQ(peer.counters().remaps, 300u);
  for (std::uint32_t id : {4, 5}) peer.free(id);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

TEST(GmLakePeer, TheLastPartIsSplitAndTheRestIsFree) {
  PeerScript peer(replay::gmlake_policy(), mebibytes({400, 400, 600, 200}));
  const std::uint64_t first = peer.allocate(0);
  peer.allocate(1);
  peer.free(0);
  peer.free(1);
  peer.allocate(2);  // the 400 of higher address, then 200 of the other
  EXPECT_EQ(peer.allocate(3), first + 200 * kMiB);
  EXPECT_EQ(peer.reserved(), 800 * kMiB);
}

TEST(GmLakePeer, AStitchedBlockInPartLeavesTheOtherPagesFree) {
  PeerScript peer(replay::gmlake_policy(), mebibytes({300, 300, 600, 520, 80, 80, 600}));
  peer.allocate(0);
  peer.allocate(1);
  peer.free(0);
  peer.free(1);
  const std::uint64_t stitched = peer.allocate(2);
  peer.free(2);
  EXPECT_EQ(peer.allocate(3), stitched);  // 520 of 600, 80 of the second part stay free
  peer.allocate(4);
  EXPECT_EQ(peer.reserved(), 600 * kMiB);
  peer.free(3);
  peer.free(4);
  EXPECT_EQ(peer.allocate(6), stitched);
  EXPECT_EQ(peer.reserved(), 600 * kMiB);
}

TEST(GmLakePeer, AFlushUnderAStitchedBlockInUseTakesItsUnusedPages) {
  // Stitched from three parts of 300; 520 of it are in use, so the third part goes back, and the
  // stitched block is no more once its holder is done.
  PeerScript peer(replay::gmlake_policy(), mebibytes({300, 300, 300, 900, 520, 900}));
  for (std::uint32_t id : {0, 1, 2}) peer.allocate(id);
  for (std::uint32_t id : {0, 1, 2}) peer.free(id);
  const std::uint64_t stitched = peer.allocate(3);
  EXPECT_EQ(peer.reserved(), 900 * kMiB);
  peer.free(3);
  EXPECT_EQ(peer.allocate(4), stitched);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 600 * kMiB);
  peer.free(4);
  EXPECT_NE(peer.allocate(5), stitched);
  EXPECT_EQ(peer.reserved(), 1500 * kMiB);
  peer.free(5);
  peer.policy().flush();
  EXPECT_EQ(peer.reserved(), 0u);
}

}  // namespace
}  // namespace sluice::testing
