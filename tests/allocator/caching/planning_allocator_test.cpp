// Record and plan: steps that repeat are answered from the arena, in order, and nothing else is.
#include "allocator/caching/planning_allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "device/host/host_device.hpp"
#include "tests/allocator/caching/stress_operations.hpp"
#include "tests/support/page.hpp"

namespace sluice::allocator {
namespace {

class PlanningAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override { make(64); }
  void make(std::uint64_t cap_pages) {
    planner_.reset();
    allocator_.reset();
    pages_.reset();
    ledger_ = std::make_unique<Ledger>(std::array<std::uint64_t, 3>{cap_pages * kPage, 0, 0});
    pages_ = std::make_unique<PagePool>(*device_, *ledger_, kPage);
    allocator_ = std::make_unique<CachingAllocator>(
        *device_, *pages_,
        CachingAllocatorOptions{.segment_bytes = 256 * kPage, .recorder = recorder_.get()});
    PlanningAllocatorOptions options;
    options.in_background = false;
    planner_ = std::make_unique<PlanningAllocator>(*device_, *allocator_, options);
    for (std::unique_ptr<device::Stream>& stream : streams_) planner_->add_stream(*stream);
  }
  void TearDown() override {
    planner_.reset();
    if (allocator_ != nullptr) allocator_->check_invariants();
    allocator_.reset();
    pages_.reset();
    EXPECT_EQ(device_->counters().live_bytes, 0u);
    wait_for_streams();
  }

  std::byte* allocate(std::uint64_t bytes, StreamId stream = 0) {
    std::byte* const data = planner_->allocate({bytes, stream, Category::kActivation, 0});
    fill(data, bytes, stream);
    return data;
  }
  // Work queued on the stream as if it wrote all of it: the race detector judges its order. The
  // ends are written.
  void fill(std::byte* data, std::uint64_t bytes, StreamId stream) {
    const device::MemoryAccess access{data, bytes, true};
    const std::uint64_t end = std::min<std::uint64_t>(bytes, 512);
    streams_[stream]->launch(
        [=] {
          std::memset(data, 1, end);
          std::memset(data + bytes - end, 1, end);
        },
        {&access, 1});
  }
  void wait_for_streams() {  // throws races that the detector found
    for (std::unique_ptr<device::Stream>& stream : streams_) {
      stream->synchronize(Deadline::after_seconds(60));
    }
  }
  void free(std::byte* data) { planner_->free(data); }

  // Five buffers in a step, at most 4.5 pages; `held` lives into the next.
  void step(std::uint64_t extra_bytes = 0) {
    planner_->begin_step();
    std::byte* const a = allocate(2 * kPage);
    std::byte* const b = allocate(kPage);
    free(held_);
    if (extra_bytes > 0) free(allocate(extra_bytes));
    free(a);
    std::byte* const c = allocate(3 * kPage);
    held_ = allocate(kPage / 2);
    free(b);
    std::byte* const d = allocate(kPage, 1);
    free(c);
    free(d);
  }

  std::unique_ptr<device::Device> device_ =
      device::make_host_device({.capacity_bytes = 256 * kPage, .detect_races = true});
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<PagePool> pages_;
  std::vector<std::unique_ptr<device::Stream>> streams_ = make_streams();
  std::unique_ptr<record::MemoryRecorder> recorder_;  // null: none
  std::unique_ptr<CachingAllocator> allocator_;
  std::unique_ptr<PlanningAllocator> planner_;
  std::byte* held_ = nullptr;

 private:
  std::vector<std::unique_ptr<device::Stream>> make_streams() {
    std::vector<std::unique_ptr<device::Stream>> streams;
    for (const char* name : {"compute", "communication", "copy"}) {
      streams.push_back(device_->create_stream(name));
    }
    return streams;
  }
};

TEST_F(PlanningAllocatorTest, PlansAfterTwoStepsThatAreAlike) {
  for (int i = 0; i < 2; ++i) step();
  EXPECT_EQ(planner_->statistics().plan_count, 0u);
  for (int i = 0; i < 5; ++i) step();  // the next mark ends the second
  const PlanningAllocatorStatistics statistics = planner_->statistics();
  EXPECT_EQ(statistics.plan_count, 1u);
  EXPECT_EQ(statistics.planned_count, 5u * 5);
  EXPECT_EQ(statistics.fallback_count, 0u);
  EXPECT_EQ(statistics.diverged_steps, 0u);
  free(held_);
}

TEST_F(PlanningAllocatorTest, ARepeatedStepMakesNoDeviceCall) {
  for (int i = 0; i < 6; ++i) step();
  const std::uint64_t map_calls = device_->counters().map_calls;
  const CachingAllocatorStatistics before = allocator_->statistics();
  for (int i = 0; i < 10; ++i) step();
  const CachingAllocatorStatistics after = allocator_->statistics();
  EXPECT_EQ(device_->counters().map_calls, map_calls);
  EXPECT_EQ(after.allocation_count, before.allocation_count);
  EXPECT_EQ(after.synchronisations, before.synchronisations);
  // The arena in whole pages, and nothing else.
  EXPECT_EQ(after.reserved_bytes, 5 * kPage);
  free(held_);
}

TEST_F(PlanningAllocatorTest, UnplannedRequestsGoToTheOtherAllocator) {
  for (int i = 0; i < 6; ++i) step();
  for (int i = 0; i < 4; ++i) {
    const PlanningAllocatorStatistics before = planner_->statistics();
    step(3 * kPage + 512);
    const PlanningAllocatorStatistics after = planner_->statistics();
    EXPECT_EQ(after.fallback_count - before.fallback_count, 1u);
    EXPECT_EQ(after.planned_count - before.planned_count, 5u);
  }
  EXPECT_EQ(planner_->statistics().diverged_steps, 0u);
  free(held_);
}

TEST_F(PlanningAllocatorTest, NothingIsPlacedOnOverdueBlocks) {
  for (int i = 0; i < 6; ++i) step();
  planner_->begin_step();
  std::byte* const a = allocate(2 * kPage);
  std::byte* const b = allocate(kPage);
  free(std::exchange(held_, nullptr));
  // `a` is not freed, and it lies at the planned place of c.
  std::byte* const c = allocate(3 * kPage);
  for (std::byte* one : {a, b}) {
    const std::uint64_t bytes = one == a ? 2 * kPage : kPage;
    EXPECT_TRUE(c + 3 * kPage <= one || one + bytes <= c);
  }
  free(a);
  free(b);
  free(c);
  for (int i = 0; i < 3; ++i) step();
  free(held_);
}

TEST_F(PlanningAllocatorTest, AnotherWayOfWorkingIsPlannedAnew) {
  for (int i = 0; i < 6; ++i) step();
  for (int i = 0; i < 8; ++i) {
    planner_->begin_step();
    std::vector<std::byte*> blocks;
    for (std::uint64_t n = 1; n < 6; ++n) blocks.push_back(allocate(n * 700 * 1024, n % 3));
    for (std::byte* block : blocks) free(block);
    if (held_ != nullptr) free(std::exchange(held_, nullptr));
  }
  const PlanningAllocatorStatistics statistics = planner_->statistics();
  EXPECT_EQ(statistics.plan_count, 2u);
  EXPECT_GT(statistics.planned_step_count, 0u);
}

TEST_F(PlanningAllocatorTest, WithoutRoomForTheArenaItGoesOnWithoutPlan) {
  make(5);  // an arena of 4 pages next to 2 that are held between steps and 1 of small blocks
  std::byte* const weight = planner_->allocate({100, 0});
  for (int i = 0; i < 8; ++i) {
    planner_->begin_step();
    free(std::exchange(held_, nullptr));
    free(allocate(4 * kPage));
    held_ = allocate(2 * kPage);
  }
  EXPECT_EQ(planner_->statistics().plan_count, 0u);
  EXPECT_EQ(planner_->statistics().fallback_count, 0u);
  free(held_);
  free(weight);
}

// Two of a kind at once, from two steps: one place is not enough, so neither has one.
TEST_F(PlanningAllocatorTest, BlocksThatOutliveAStepAreNotPlanned) {
  for (int i = 0; i < 8; ++i) {
    planner_->begin_step();
    std::byte* const of_the_last_step = std::exchange(held_, allocate(2 * kPage));
    free(allocate(kPage));
    free(of_the_last_step);
  }
  const PlanningAllocatorStatistics statistics = planner_->statistics();
  EXPECT_EQ(statistics.planned_count, 6u);  // one in each of six steps
  EXPECT_EQ(statistics.arena_bytes, kPage);
  EXPECT_EQ(statistics.diverged_steps, 0u);
  free(held_);
}

TEST_F(PlanningAllocatorTest, RefusesForeignPointers) {
  for (int i = 0; i < 6; ++i) step();
  planner_->begin_step();
  std::byte* const a = allocate(2 * kPage);
  EXPECT_THROW(planner_->free(a + 512), InternalError);
  free(a);
  EXPECT_THROW(planner_->free(a), InternalError);
  free(held_);
}

// A buffer that another stream uses: the next at its place waits for that stream too.
TEST_F(PlanningAllocatorTest, UsesOnOtherStreamsAreWaitedFor) {
  for (int i = 0; i < 9; ++i) {
    planner_->begin_step();
    std::byte* const gathered = allocate(4 * kPage, 1);
    const std::unique_ptr<device::Event> ready = device_->create_event();
    streams_[1]->record(*ready);
    streams_[0]->wait(*ready);
    fill(gathered, 4 * kPage, 0);
    planner_->record_use(gathered, 0);
    free(gathered);
    free(allocate(4 * kPage, 2));
    free(allocate(3 * kPage, 1));
  }
  const PlanningAllocatorStatistics statistics = planner_->statistics();
  EXPECT_GT(statistics.event_waits, 0u);
  EXPECT_GT(statistics.planned_count, 0u);
  EXPECT_EQ(statistics.diverged_steps, 0u);
  EXPECT_EQ(statistics.arena_bytes, 4 * kPage);
}

// The plan lets stream 1 wait for the block that stream 0 freed last; this time that is
// another block.
TEST_F(PlanningAllocatorTest, FreedInAnotherOrderTheLastUseIsStillWaitedFor) {
  for (int i = 0; i < 8; ++i) {
    planner_->begin_step();
    std::byte* const first = allocate(kPage);
    std::byte* const second = allocate(kPage);
    if (i < 7) {
      free(first);
      free(second);
    } else {
      free(second);
      fill(first, kPage, 0);
      free(first);
    }
    free(allocate(2 * kPage, 1));
  }
  EXPECT_EQ(planner_->statistics().fallback_count, 0u);
  EXPECT_EQ(planner_->statistics().arena_bytes, 2 * kPage);
}

// In the first step that a plan serves, the blocks left by the last step lie outside the arena. The
// plan waits for a release that does not come, so an earlier one counts.
TEST_F(PlanningAllocatorTest, BlocksOutsideTheArenaHideNoEarlierUse) {
  for (int i = 0; i < 6; ++i) {
    planner_->begin_step();
    free(allocate(kPage, 1));
    free(std::exchange(held_, nullptr));
    free(allocate(2 * kPage, 0));
    held_ = allocate(kPage, 1);
  }
  EXPECT_EQ(planner_->statistics().arena_bytes, 2 * kPage);
  EXPECT_EQ(planner_->statistics().diverged_steps, 0u);
  free(held_);
}

TEST_F(PlanningAllocatorTest, BlocksOfStreamsThatAreNotMovableAreNotPlanned) {
  const std::unique_ptr<device::Stream> registered = device_->create_stream("registered");
  const StreamId fixed = planner_->add_stream(*registered, false);
  std::byte* first = nullptr;
  for (int i = 0; i < 6; ++i) {
    planner_->begin_step();
    std::byte* const data = planner_->allocate({2 * kPage, fixed});
    if (first == nullptr) first = data;
    EXPECT_EQ(data, first);
    free(allocate(kPage));
    planner_->free(data);
  }
  EXPECT_EQ(planner_->statistics().arena_bytes, kPage);
  planner_.reset();
  allocator_.reset();  // before the stream
}

TEST_F(PlanningAllocatorTest, AnIdleArenaMakesRoom) {
  for (int i = 0; i < 5; ++i) {
    planner_->begin_step();
    free(allocate(40 * kPage));
  }
  EXPECT_EQ(planner_->statistics().arena_bytes, 40 * kPage);
  std::byte* const large = allocate(30 * kPage);
  EXPECT_EQ(planner_->statistics().arena_bytes, 0u);
  free(large);
  step();
  free(held_);
}

TEST_F(PlanningAllocatorTest, ADroppedPlansBlocksAreFreedOnce) {
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 6; ++i) {
    planner_->begin_step();
    blocks = {allocate(kPage), allocate(kPage)};
    if (i < 5) {
      for (std::byte* block : blocks) free(block);
    }
  }
  for (int i = 0; i < 3; ++i) planner_->begin_step();  // two steps without any of it
  EXPECT_EQ(planner_->statistics().arena_bytes, 0u);
  free(blocks[0]);
  EXPECT_THROW(planner_->free(blocks[0]), InternalError);
  EXPECT_THROW(planner_->free(blocks[1] + 512), InternalError);
  free(blocks[1]);
}

// In the arena in use and in one of a dropped plan.
TEST_F(PlanningAllocatorTest, ASnapshotHasTheBlocksInArenas) {
  recorder_ = std::make_unique<record::MemoryRecorder>(1000);
  make(64);
  using Blocks = std::map<std::uint64_t, std::uint64_t>;  // bytes by address
  const auto live_in = [](const record::MemorySnapshot& snapshot) {
    Blocks live;
    for (const record::SnapshotSegment& segment : snapshot.segments) {
      std::uint64_t address = segment.address;
      for (const record::SnapshotBlock& block : segment.blocks) {
        EXPECT_EQ(block.address, address);
        address += block.bytes;
        if (block.state == record::BlockState::kFree) continue;
        EXPECT_EQ(block.state, record::BlockState::kAllocated);
        EXPECT_EQ(block.category, Category::kWorkspace);
        EXPECT_EQ(block.name, 7u);
        live[block.address] = block.requested_bytes;
      }
      EXPECT_EQ(address, segment.address + segment.bytes);
    }
    return live;
  };
  const auto get = [&](std::uint64_t bytes) {
    return planner_->allocate({bytes, 0, Category::kWorkspace, 7});
  };
  const auto at = [](const std::byte* data) { return reinterpret_cast<std::uint64_t>(data); };
  std::byte* first = nullptr;
  std::byte* last = nullptr;
  for (int i = 0; i < 6; ++i) {
    planner_->begin_step();
    first = get(kPage - 100);
    std::byte* const between = get(kPage);
    last = get(kPage / 2);
    planner_->free(between);
    if (i < 5) {
      planner_->free(first);
      planner_->free(last);
    }
  }
  const Blocks expected{{at(first), kPage - 100}, {at(last), kPage / 2}};
  ASSERT_EQ(planner_->statistics().arena_live_bytes, kPage + kPage / 2);
  EXPECT_EQ(
      planner_->statistics().arena_live_by_category[static_cast<std::size_t>(Category::kWorkspace)],
      kPage - 100 + kPage / 2);
  EXPECT_EQ(live_in(planner_->snapshot()), expected);
  for (int i = 0; i < 3; ++i) planner_->begin_step();  // two steps without any of it
  ASSERT_EQ(planner_->statistics().arena_bytes, 0u);
  EXPECT_EQ(live_in(planner_->snapshot()), expected);
  planner_->free(first);
  EXPECT_EQ(live_in(planner_->snapshot()), (Blocks{{at(last), kPage / 2}}));
  planner_->free(last);
  EXPECT_EQ(live_in(planner_->snapshot()), Blocks());

  for (int i = 0; i < 5; ++i) {  // and blocks that a planner leaves are reported
    planner_->begin_step();
    first = get(kPage / 4);
    if (i < 4) planner_->free(first);
  }
  ASSERT_EQ(planner_->statistics().arena_live_bytes, kPage / 4);
  planner_.reset();
  std::uint64_t balance = 0;  // every event of an allocation has its two of a free
  for (const record::MemoryEvent& event : recorder_->events()) {
    if (event.action == record::MemoryAction::kAlloc) balance += 2 * event.bytes;
    if (event.action == record::MemoryAction::kFreeRequested) balance -= event.bytes;
    if (event.action == record::MemoryAction::kFreeCompleted) balance -= event.bytes;
    EXPECT_TRUE(event.action != record::MemoryAction::kAlloc || event.bytes <= kPage)
        << "the arena itself";
  }
  EXPECT_EQ(balance, 0u);
}

TEST_F(PlanningAllocatorTest, AMarkWhileAPlanIsMadeMakesNoSecond) {
  PlanningAllocatorOptions options;
  options.in_background = false;
  options.plan = [this](const StepRecording& before, const StepRecording& step) {
    planner_->begin_step();  // as another thread may
    return plan_step(before, step, packing::PackingEffort::kQuick);
  };
  planner_ = std::make_unique<PlanningAllocator>(*device_, *allocator_, options);
  for (std::unique_ptr<device::Stream>& stream : streams_) planner_->add_stream(*stream);
  for (int i = 0; i < 8; ++i) {
    planner_->begin_step();
    free(planner_->allocate({kPage, 3}));
  }
  EXPECT_EQ(planner_->statistics().plan_count, 1u);
}

// Steps drawn from a seed: mostly alike, sometimes something more, something less, late or in
// another order. The race detector sees every two uses of a byte; patterns are checked on the way.
TEST_F(PlanningAllocatorTest, AnySequenceKeepsEveryByteToItsOwner) {
  struct Live {
    std::byte* data;
    std::uint64_t bytes;
    StreamId stream;
  };
  constexpr std::uint64_t kSeeds = 3;
  constexpr std::uint64_t kAllocations = 40;  // of a step
  const std::uint64_t steps =
      stress_operations(24 * kSeeds * 2 * kAllocations) / (kSeeds * 2 * kAllocations);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    make(96);
    const CounterRng rng(seed, stream_of("planning"));
    std::uint64_t draws = 0;
    const auto draw = [&](std::uint64_t below) { return rng.below(draws++, below); };
    // The usual step: sizes, streams, and after how many further allocations each is freed.
    struct Usual {
      std::uint64_t bytes;
      StreamId stream;
      std::uint64_t life;
    };
    std::vector<Usual> usual;
    for (std::uint64_t i = 0; i < kAllocations; ++i) {
      usual.push_back({draw(2) == 0 ? 512 * (1 + draw(64)) : kPage / 4 * (1 + draw(16)),
                       static_cast<StreamId>(draw(3)), 1 + draw(12)});
    }
    std::vector<std::pair<std::uint64_t, Live>> live;  // freed when the count is reached
    std::uint64_t count = 0;
    const auto free_due = [&] {
      for (std::size_t i = 0; i < live.size();) {
        if (live[i].first > count || draw(40) == 0) {
          ++i;
          continue;
        }
        if (draw(4) == 0) {
          const StreamId other = static_cast<StreamId>(draw(3));
          planner_->record_use(live[i].second.data, other);
        }
        const Live& one = live[i].second;
        if (draw(2) == 0) fill(one.data, one.bytes, one.stream);  // its last use may come late
        free(one.data);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      }
    };
    for (std::uint64_t step = 0; step < steps; ++step) {
      planner_->begin_step();
      for (const Usual& one : usual) {
        const bool odd = step > 6 && draw(60) == 0;
        if (odd && draw(2) == 0) continue;
        const std::uint64_t bytes = odd ? one.bytes + 512 : one.bytes;
        std::byte* const data = allocate(bytes, one.stream);
        for (const auto& [due, other] : live) {
          ASSERT_TRUE(data + bytes <= other.data || other.data + other.bytes <= data);
        }
        live.push_back({++count + one.life, {data, bytes, one.stream}});
        free_due();
      }
      if (step % 5 == 0) allocator_->check_invariants();
      if (step % 100 == 99) wait_for_streams();  // so that queued work stays bounded
    }
    for (const auto& [due, one] : live) free(one.data);
    EXPECT_GT(planner_->statistics().planned_count, 0u);
    EXPECT_GT(planner_->statistics().fallback_count, 0u);
  }
}

}  // namespace
}  // namespace sluice::allocator
