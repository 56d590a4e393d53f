#include "allocator/record/trace_from_snapshot.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "allocator/record/format/torch_snapshot.hpp"
#include "tests/support/check_trace.hpp"
#include "tests/support/snapshot_sums.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::record {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kBase = 0x7f0000000000;
using enum MemoryAction;

struct Result {
  MemoryTrace trace;
  TraceDefects defects;
};

Result convert(const MemorySnapshot& snapshot) {
  Result result;
  result.trace = trace_of(snapshot, "given", "torch", &result.defects);
  testing::check_trace(result.trace);
  return result;
}

// A record that contradicts itself nowhere.
MemoryTrace convert(std::vector<SnapshotSegment> segments, std::vector<MemoryEvent> events) {
  MemorySnapshot snapshot;
  snapshot.segments = std::move(segments);
  snapshot.events = std::move(events);
  Result result = convert(snapshot);
  EXPECT_EQ(result.defects.contradictions, 0u);
  return std::move(result.trace);
}

MemoryEvent event(MemoryAction action, std::uint64_t address, std::uint64_t bytes,
                  std::uint64_t stream = 0) {
  return {.action = action, .stream = stream, .address = address, .bytes = bytes};
}

// "a0 f0 p1 c1 | ~ x3 r2": an allocation, a free, a pending one and its completion, a step, a
// flush, the release of private pool 3, a refused request.
std::string operations(const MemoryTrace& trace) {
  std::string result;
  for (const TraceOperation& operation : trace.operations) {
    if (!result.empty()) result += ' ';
    const auto action = static_cast<std::size_t>(operation.action);
    result += "afpc|~xr"[action];
    if (action < 4 || action > 5) result += std::to_string(operation.allocation);
  }
  return result;
}

SnapshotSegment segment(std::uint64_t address, std::uint64_t bytes,
                        std::vector<SnapshotBlock> blocks = {}) {
  return {.address = address,
          .bytes = bytes,
          .is_small = bytes == 2 * kMiB,
          .blocks = std::move(blocks)};
}

SnapshotBlock block(std::uint64_t address, std::uint64_t bytes, std::uint64_t requested_bytes,
                    BlockState state) {
  return {address, bytes, requested_bytes, state};
}

class RecordOfPyTorch : public ::testing::TestWithParam<const char*> {};

// Records of a model of PyTorch's allocator, cut at the front, and the true state at the cut. They
// have several streams, uses on other streams, private pools, freed segments and failed
// allocations.
TEST_P(RecordOfPyTorch, TheStateAtTheCutIsFound) {
  const std::string name = std::string("/") + GetParam();
  const Result result = convert(read_torch_snapshot(SLUICE_TEST_SNAPSHOTS + name + ".pickle"));
  EXPECT_EQ(result.defects.contradictions, 0u);
  EXPECT_EQ(result.defects.unknown_frees, 0u);
  std::ostringstream found;
  found << "reserved " << result.trace.recorded_peak_reserved_bytes << ' '
        << result.trace.recorded_end_reserved_bytes << '\n';
  for (const SnapshotSegment& held : result.trace.initial_segments) {
    found << "segment " << held.address << ' ' << held.bytes << ' ' << held.stream << ' '
          << held.is_small << '\n';
    for (const SnapshotBlock& block : held.blocks) {
      found << "block " << block.address << ' ' << block.bytes << ' ' << block.requested_bytes
            << ' ' << static_cast<int>(block.state) << '\n';
    }
  }
  std::ifstream file(SLUICE_TEST_DATA + name + ".txt");
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_FALSE(expected.str().empty());
  EXPECT_EQ(found.str(), expected.str());
}

INSTANTIATE_TEST_SUITE_P(All, RecordOfPyTorch, ::testing::Values("torch_cut", "torch_cut_split"));

TEST(TraceOf, AFreeIsOneOperationUnlessOthersStillUseTheMemory) {
  const MemoryTrace trace = convert(
      {segment(kBase, 2 * kMiB)},
      {event(kSegmentAlloc, kBase, 2 * kMiB), event(kAlloc, kBase, 100),
       event(kAlloc, kBase + 512, 100), event(kFreeRequested, kBase, 100),
       event(kFreeCompleted, kBase, 100), event(kFreeRequested, kBase + 512, 100),
       event(kStep, 0, 0), event(kAlloc, kBase, 40), event(kFreeCompleted, kBase + 512, 100),
       event(kFreeRequested, kBase, 40), event(kFreeCompleted, kBase, 40)});
  EXPECT_EQ(operations(trace), "a0 a1 f0 p1 | a2 c1 f2");
  EXPECT_TRUE(trace.initial_segments.empty());
  EXPECT_EQ(trace.allocations[0].segment_address, kBase);
  EXPECT_EQ(trace.allocations[1].segment_address, 0u);
  EXPECT_EQ(trace.allocations[2].bytes, 40u);
  EXPECT_EQ(trace.recorded_peak_reserved_bytes, 2 * kMiB);
}

TEST(TraceOf, EarlierMemoryHasNoAllocation) {
  // One block is pending at the start, one is allocated at the start, one is pending at the end.
  const MemoryTrace trace =
      convert({segment(kBase, 2 * kMiB,
                       {block(kBase, 1024, 600, BlockState::kPendingFree),
                        block(kBase + 1024, 2 * kMiB - 1024, 0, BlockState::kFree)})},
              {event(kFreeCompleted, kBase + 1024, 512), event(kFreeRequested, kBase, 600),
               event(kFreeRequested, kBase + 2048, 512), event(kFreeCompleted, kBase + 2048, 512)});
  ASSERT_EQ(trace.initial_segments.size(), 1u);
  const auto& blocks = trace.initial_segments[0].blocks;
  ASSERT_EQ(blocks.size(), 5u);
  EXPECT_EQ(blocks[0].state, BlockState::kAllocated);
  EXPECT_EQ(blocks[0].bytes, 1024u);
  EXPECT_EQ(blocks[1].state, BlockState::kPendingFree);
  EXPECT_EQ(blocks[2].state, BlockState::kFree);
  EXPECT_EQ(blocks[2].bytes, 512u);
  EXPECT_EQ(blocks[3].state, BlockState::kAllocated);
  EXPECT_EQ(trace.initial_ids[0], (std::vector<std::uint32_t>{0, 1, UINT32_MAX, 2, UINT32_MAX}));
  EXPECT_EQ(operations(trace), "c1 p0 f2");
}

TEST(TraceOf, ARestThatIsTooSmallToSplitBelongsToItsBlock) {
  const auto first_block_bytes = [](std::uint64_t bytes, bool is_expandable) {
    MemorySnapshot snapshot;
    snapshot.segments.push_back(segment(kBase, 20 * kMiB));
    snapshot.segments[0].is_expandable = is_expandable;
    snapshot.events = {event(kFreeRequested, kBase, bytes), event(kFreeCompleted, kBase, bytes)};
    return convert(snapshot).trace.initial_segments.at(0).blocks.at(0).bytes;
  };
  EXPECT_EQ(first_block_bytes(19 * kMiB, false), 20 * kMiB);
  EXPECT_EQ(first_block_bytes(19 * kMiB - 600, false), 19 * kMiB - 512);
  EXPECT_EQ(first_block_bytes(19 * kMiB, true), 19 * kMiB);
}

TEST(TraceOf, ConsecutiveFreesOfSegmentsAreOneFlush) {
  const MemoryTrace trace = convert(
      {}, {event(kSegmentFree, kBase, 20 * kMiB), event(kSegmentFree, kBase + 64 * kMiB, 2 * kMiB),
           event(kOutOfMemory, 0, 1), event(kSegmentAlloc, kBase, 40 * kMiB),
           event(kAlloc, kBase, 40 * kMiB), event(kFreeRequested, kBase, 40 * kMiB),
           event(kFreeCompleted, kBase, 40 * kMiB), event(kSegmentFree, kBase, 40 * kMiB)});
  EXPECT_EQ(operations(trace), "~ r0 a1 f1 ~");
  EXPECT_EQ(trace.initial_segments.size(), 2u);
  EXPECT_TRUE(trace.initial_segments[1].is_small);
  EXPECT_EQ(trace.recorded_peak_reserved_bytes, 40 * kMiB);
  EXPECT_EQ(trace.recorded_end_reserved_bytes, 0u);
}

// The program may free and ask again: each request stands where it was made.
TEST(TraceOf, ARefusedRequestKeepsItsPlace) {
  MemorySnapshot snapshot;
  snapshot.segments = {segment(kBase, 40 * kMiB)};
  snapshot.names = {"", "train.py:7 step"};
  snapshot.events = {event(kAlloc, kBase, 30 * kMiB),
                     {.action = kOutOfMemory,
                      .category = Category::kActivation,
                      .pool = 2,
                      .name = 1,
                      .stream = 5,
                      .address = 3 * kMiB,
                      .bytes = 20 * kMiB},
                     event(kFreeRequested, kBase, 30 * kMiB),
                     event(kFreeCompleted, kBase, 30 * kMiB),
                     event(kAlloc, kBase, 20 * kMiB),
                     event(kOutOfMemory, 0, std::uint64_t{1} << 62)};
  const Result result = convert(snapshot);
  const MemoryTrace& trace = result.trace;
  EXPECT_EQ(operations(trace), "a0 r1 f0 a2");
  EXPECT_EQ(result.defects.contradictions, 2u);  // a size beyond any device's, a block that is gone
  ASSERT_EQ(trace.refused.size(), 1u);
  EXPECT_EQ(trace.refused[0].allocation, 1u);
  EXPECT_EQ(trace.refused[0].reserved_bytes, 40 * kMiB);
  EXPECT_EQ(trace.refused[0].device_free_bytes, 3 * kMiB);
  EXPECT_EQ(trace.allocations[1].stream, 5u);
  EXPECT_EQ(trace.allocations[1].pool, 2u);
  EXPECT_EQ(trace.names[trace.allocations[1].name], "train.py:7 step");
  EXPECT_EQ(peak_live_bytes(trace), 30 * kMiB);
  EXPECT_EQ(peak_needed_bytes(trace), 50 * kMiB);
  EXPECT_EQ(operations(without_refused(trace)), "a0 f0 a2");
}

TEST(TraceOf, PrivatePoolsThatAreGoneAtTheEndAreFollowed) {
  const auto in_pool = [](MemoryEvent one) {
    one.pool = 3;
    return one;
  };
  // A segment from before, one from the record, and idle memory of the default pool, which stays.
  const MemoryTrace trace = convert(
      {segment(kBase + 128 * kMiB, 20 * kMiB)},
      {in_pool(event(kSegmentAlloc, kBase, 20 * kMiB)), in_pool(event(kAlloc, kBase, kMiB)),
       in_pool(event(kFreeRequested, kBase, kMiB)), in_pool(event(kFreeCompleted, kBase, kMiB)),
       in_pool(event(kFreeRequested, kBase + 64 * kMiB, 9)),
       in_pool(event(kFreeCompleted, kBase + 64 * kMiB, 9)),
       in_pool(event(kSegmentFree, kBase, 20 * kMiB)),
       in_pool(event(kSegmentFree, kBase + 64 * kMiB, 2 * kMiB))});
  EXPECT_EQ(operations(trace), "a1 f1 f0 x3");
  EXPECT_EQ(trace.allocations[0].pool, 3u);
  EXPECT_EQ(trace.allocations[1].pool, 3u);
  EXPECT_FALSE(trace.recorded_trimming);
  EXPECT_EQ(trace.recorded_peak_reserved_bytes, 42 * kMiB);
}

TEST(TraceOf, MoreLiveBytesThanReservedOnesAreAContradiction) {
  MemorySnapshot snapshot;
  snapshot.segments = {
      segment(kBase, 2 * kMiB, {block(kBase, 2 * kMiB, 3, BlockState::kAllocated)})};
  snapshot.events = {event(kAlloc, kBase, 9 * kMiB)};
  EXPECT_EQ(convert(snapshot).defects.contradictions, 1u);
}

TEST(TraceOf, TrimmingByTheAllocatorIsNotAFlush) {
  MemorySnapshot snapshot;
  snapshot.segments.push_back(segment(kBase, 40 * kMiB));
  snapshot.events = {event(kSegmentFree, kBase + 64 * kMiB, 20 * kMiB)};
  EXPECT_EQ(operations(convert(snapshot).trace), "");
  EXPECT_TRUE(convert(snapshot).trace.recorded_trimming);
  snapshot.segments[0].pool = 3;  // a private pool is not released
  EXPECT_EQ(operations(convert(snapshot).trace), "~");
  EXPECT_FALSE(convert(snapshot).trace.recorded_trimming);
}

TEST(TraceOf, SingleSegmentsGoUnderALimitToSplitting) {
  MemorySnapshot snapshot;
  snapshot.segments.push_back(segment(kBase, 20 * kMiB));
  snapshot.events = {event(kSegmentFree, kBase + 64 * kMiB, 40 * kMiB)};
  EXPECT_EQ(operations(convert(snapshot).trace), "~");
  snapshot.max_split_bytes = 30 * kMiB;
  EXPECT_EQ(operations(convert(snapshot).trace), "");
  EXPECT_TRUE(convert(snapshot).trace.recorded_trimming);
  snapshot.segments.clear();  // no segment stays, but this is a flush, too
  EXPECT_EQ(operations(convert(snapshot).trace), "~");
}

TEST(TraceOf, PagesOfExpandableSegmentsComeAndGo) {
  SnapshotSegment pages = segment(kBase, 40 * kMiB);
  pages.is_expandable = true;
  pages.pool = 5;
  MemorySnapshot snapshot;
  snapshot.expandable_segments = true;
  snapshot.segments.push_back(pages);
  // [0, 60) MiB are mapped at first. The middle is unmapped and mapped again, the end is unmapped.
  snapshot.events = {event(kSegmentUnmap, kBase + 20 * kMiB, 20 * kMiB),
                     event(kSegmentUnmap, kBase + 40 * kMiB, 20 * kMiB),
                     event(kStep, 0, 0),
                     event(kSegmentMap, kBase + 20 * kMiB, 20 * kMiB),
                     event(kAlloc, kBase + 20 * kMiB, kMiB),
                     event(kFreeRequested, kBase + 20 * kMiB, kMiB),
                     event(kFreeCompleted, kBase + 20 * kMiB, kMiB)};
  const Result result = convert(snapshot);
  ASSERT_EQ(result.trace.initial_segments.size(), 1u);
  EXPECT_EQ(result.trace.initial_segments[0].bytes, 60 * kMiB);
  EXPECT_TRUE(result.trace.initial_segments[0].is_expandable);
  EXPECT_EQ(operations(result.trace), "x5 | a0 f0");
  EXPECT_EQ(result.trace.allocations[0].pool, 5u);
  EXPECT_EQ(result.trace.recorded_peak_reserved_bytes, 60 * kMiB);
  EXPECT_EQ(result.trace.recorded_end_reserved_bytes, 40 * kMiB);
  EXPECT_EQ(result.defects.contradictions, 0u);
}

TEST(TraceOf, OneKindOfFreeEventsIsEnough) {
  for (const MemoryAction word : {kFreeRequested, kFreeCompleted}) {
    const MemoryTrace trace =
        convert({segment(kBase, 2 * kMiB)},
                {event(word, kBase + 1024, 9), event(kAlloc, kBase, 1), event(word, kBase, 1),
                 event(kAlloc, kBase, 1), event(word, kBase, 1)});
    EXPECT_EQ(operations(trace), "f0 a1 f1 a2 f2");
  }
}

TEST(TraceOf, ContradictionsAreCountedAndSkipped) {
  MemorySnapshot snapshot;
  snapshot.segments.push_back(segment(kBase, 2 * kMiB));
  const auto defects_of = [&](std::vector<MemoryEvent> events) {
    snapshot.events = std::move(events);
    return convert(snapshot);
  };
  // A block is freed twice. Undoing the second free restores it, and the first finds nothing to
  // undo.
  const Result twice =
      defects_of({event(kAlloc, kBase, 1), event(kFreeRequested, kBase, 1),
                  event(kFreeCompleted, kBase, 1), event(kFreeCompleted, kBase, 1)});
  EXPECT_EQ(operations(twice.trace), "a0 f0");
  EXPECT_EQ(twice.defects.unknown_frees, 1u);
  EXPECT_GT(twice.defects.contradictions, 0u);
  // A block is allocated over another, and is never freed although the end state holds nothing.
  const Result over = defects_of({event(kAlloc, kBase, 1), event(kAlloc, kBase, 1)});
  EXPECT_EQ(operations(over.trace), "a0 f0 a1");
  EXPECT_EQ(over.defects.contradictions, 3u);
  // Blocks lie outside all segments, and at addresses beyond any device's.
  const Result outside =
      defects_of({event(kFreeRequested, 4096, 700), event(kFreeCompleted, 4096, 700),
                  event(kAlloc, UINT64_MAX, UINT64_MAX)});
  ASSERT_EQ(outside.trace.initial_segments.size(), 2u);
  EXPECT_EQ(outside.trace.initial_segments[0].bytes, 1024u);
  EXPECT_EQ(operations(outside.trace), "f0");
  EXPECT_EQ(outside.defects.contradictions, 2u);
}

TEST(TraceOf, ARecordWithoutSegmentsHasNoneReserved) {
  const MemoryTrace trace =
      convert({}, {event(kAlloc, kBase, 1), event(kFreeRequested, kBase + 512, 5),
                   event(kFreeCompleted, kBase + 512, 5)});
  EXPECT_EQ(operations(trace), "a1 f0");
  EXPECT_EQ(trace.recorded_peak_reserved_bytes, 0u);
}

// Blocks that overlap could otherwise make sums wrap around.
TEST(TraceOf, RefusesARecordThatHoldsMoreThanAnAddressSpace) {
  MemorySnapshot snapshot;
  snapshot.events = {event(kAlloc, 512, kMostHeldBytes), event(kAlloc, 1024, 1)};
  EXPECT_TRUE(testing::mentions(testing::refusal_of([&] { convert(snapshot); }),
                                "event 2: holds more than 65536 TiB at once"));
  snapshot.events.insert(snapshot.events.begin() + 1, event(kFreeCompleted, 512, kMostHeldBytes));
  convert(snapshot);
  const std::uint64_t apart = 2 * kMostHeldBytes;
  snapshot.events = {event(kFreeRequested, apart, kMostHeldBytes),
                     event(kFreeRequested, 2 * apart, kMostHeldBytes)};
  EXPECT_TRUE(testing::mentions(testing::refusal_of([&] { convert(snapshot); }),
                                "before its first event: holds more"));
}

// Any events over any end state: check_trace passes, segments are full of blocks without gaps.
TEST(TraceOf, NeverFailsOnARecordThatMakesNoSense) {
  std::mt19937_64 random(7);
  const auto pick = [&](std::uint64_t end) { return random() % end; };
  const std::uint64_t extremes[] = {0, 1, UINT64_MAX, std::uint64_t{1} << 62,
                                    (std::uint64_t{1} << 62) - 1};
  const auto any = [&](std::uint64_t step, std::uint64_t count) {
    return pick(50) == 0 ? extremes[pick(5)] : pick(count) * step;
  };
  for (int round = 0; round < 3000; ++round) {
    MemorySnapshot snapshot;
    for (std::uint64_t s = pick(4); s-- > 0;) {
      SnapshotSegment held = segment(any(kMiB, 8), any(kMiB, 4));
      held.is_expandable = pick(2) == 0;
      held.pool = pick(2);
      for (std::uint64_t b = pick(4); b-- > 0;) {
        held.blocks.push_back(block(any(kMiB / 2, 20), any(512, 3000), any(512, 3000),
                                    static_cast<BlockState>(pick(3))));
        held.blocks.back().name = static_cast<std::uint32_t>(pick(3));
      }
      snapshot.segments.push_back(held);
    }
    for (std::uint64_t e = pick(60); e-- > 0;) {
      snapshot.events.push_back(
          event(static_cast<MemoryAction>(pick(10)), any(kMiB / 2, 20), any(kMiB / 2, 6), pick(2)));
    }
    if (pick(3) == 0) snapshot.max_split_bytes = kMiB;
    if (pick(3) == 0) snapshot.roundup_power2_divisions = any(1, 9);
    const Result result = convert(snapshot);
    testing::sums_of(result.trace.initial_segments);
    ASSERT_FALSE(HasFailure());
    std::uint64_t end = 0;
    for (const SnapshotSegment& held : result.trace.initial_segments) {
      ASSERT_GE(held.address, end);
      end = held.address + held.bytes;
      for (const SnapshotBlock& block : held.blocks) ASSERT_GT(block.bytes, 0u);
    }
  }
}

}  // namespace
}  // namespace sluice::record
