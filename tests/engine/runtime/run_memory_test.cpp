// The memory of a run: charged to the byte, refused before anything is taken.
#include "engine/runtime/run_memory.hpp"

#include <gtest/gtest.h>

#include <array>

#include "tests/engine/runtime/runtime_bench.hpp"
#include "tests/support/failing_device.hpp"

namespace sluice::runtime {
namespace {

using allocator::FailingDevice;
using schedule::BufferId;
using schedule::Lane;
using schedule::Op;
using testing::all;
using testing::ScheduleSketch;

// Something on every tier: a window, an activation, a pinned piece and a home on storage.
schedule::Schedule mixed_schedule() {
  ScheduleSketch sketch;
  sketch.schedule.slot_bytes = kPageBytes;
  const BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, 4096, 0);
  const BufferId piece = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 4096);
  const BufferId window =
      sketch.state(StateKind::kWeight, Tier::kDevice, 0, kPageBytes / sizeof(float));
  sketch.schedule.buffers[window].window = true;
  const BufferId activation =
      sketch.buffer(schedule::BufferRole::kActivation, Tier::kDevice, 100000);
  sketch.emit(Op::kForward, Lane::kCompute, {}, {all(window)});
  sketch.emit(Op::kForward, Lane::kCompute, {all(window)}, {all(activation)});
  sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {}, {all(piece)});
  sketch.emit(Op::kStorageWrite, Lane::kStorageWrite, {all(piece)}, {all(home)});
  return finished(sketch);
}

MemoryNeed need_of(const schedule::Schedule& schedule) {
  const std::array<const schedule::Schedule*, 1> schedules{&schedule};
  return memory_need(schedules, 0);
}

void expect_nothing_live(const allocator::Ledger& ledger, const device::Device& device) {
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    EXPECT_EQ(ledger.totals(static_cast<Tier>(tier)).live_bytes, 0u) << tier;
  }
  EXPECT_EQ(device.counters().live_bytes, 0u);
}

TEST(RunMemory, ChargesExactlyTheNeed) {
  RuntimeBench bench(mixed_schedule());
  const std::array<std::uint64_t, kTierCount> peak = bench.need.peak_bytes();
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    EXPECT_GT(peak[tier], 0u);
    EXPECT_EQ(bench.ledger.totals(static_cast<Tier>(tier)).live_bytes, peak[tier]);
  }
  // The device counts the same.
  EXPECT_EQ(bench.device->counters().live_bytes, peak[0]);
  bench.run();
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    EXPECT_EQ(bench.ledger.totals(static_cast<Tier>(tier)).peak_bytes, peak[tier]);
  }
}

TEST(RunMemory, NotesTheEndsOfThePlacesThatItHandsOut) {
  RuntimeBench bench(mixed_schedule());
  const std::array<std::uint64_t, kTierCount> nothing{};
  // The program uses every place of the schedule.
  EXPECT_EQ(bench.memory->take_handed_out().peak_bytes(), bench.need.peak_bytes());
  EXPECT_EQ(bench.memory->take_handed_out().peak_bytes(), nothing);
  for (const schedule::Buffer& buffer : bench.schedule.buffers) {
    if (buffer.persistent) bench.memory->storage_ranges(buffer);
  }
  const MemoryNeed homes = bench.memory->take_handed_out();
  EXPECT_EQ(homes.peak_bytes(), resting_need(bench.schedule).peak_bytes());
  EXPECT_GT(homes.storage_bytes, 0u);
  EXPECT_EQ(homes.pinned_bytes, 0u);
  EXPECT_EQ(bench.memory->io_buffer(0, 4096).size(), 4096u);
  EXPECT_EQ(bench.memory->take_handed_out().pinned_bytes, 4096u);
}

// The budgets that need one byte more than a tier has.
TEST(RunMemory, IsRefusedWhereATierHasAByteTooFew) {
  const schedule::Schedule schedule = mixed_schedule();
  const MemoryNeed need = need_of(schedule);
  const testing::TempDirectory directory;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    std::array<std::uint64_t, kTierCount> caps = need.peak_bytes();
    --caps[tier];
    allocator::Ledger ledger(caps);
    const auto device = device::make_host_device({});
    const auto engine = offload::make_storage_engine("posix", {});
    try {
      const RunMemory memory(*device, ledger, engine.get(), {directory.path().string()}, need,
                             make_run_id());
      FAIL() << tier_name(static_cast<Tier>(tier));
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.tier, static_cast<Tier>(tier));
    }
    expect_nothing_live(ledger, *device);
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
}

// A device call that fails anywhere gives everything back.
TEST(RunMemory, ReleasesEverythingWhenTheDeviceFails) {
  const schedule::Schedule schedule = mixed_schedule();
  const MemoryNeed need = need_of(schedule);
  const testing::TempDirectory directory;
  const auto inner = device::make_host_device({});
  const auto engine = offload::make_storage_engine("posix", {});
  std::int64_t failures = 0;
  for (bool fails = true; fails; ++failures) {
    FailingDevice device(*inner);
    allocator::Ledger ledger({kGiB, kGiB, kGiB});
    device.fail_call(failures);
    try {
      const RunMemory memory(device, ledger, engine.get(), {directory.path().string()}, need,
                             make_run_id());
      fails = false;
    } catch (const DeviceError&) {
    }
    expect_nothing_live(ledger, *inner);
  }
  EXPECT_GT(failures, 4);  // a block and its mapping for slots and arena, the registration
}

TEST(RunMemory, TheLargestOfSeveralSchedulesDecides) {
  const schedule::Schedule small = testing::two_writes_of_one_home().compiled();
  schedule::Schedule large = mixed_schedule();
  const std::array<const schedule::Schedule*, 2> schedules{&large, &large};
  const MemoryNeed need = memory_need(schedules, 0);
  EXPECT_EQ(need.peak_bytes(), need_of(large).peak_bytes());
  const std::array<const schedule::Schedule*, 1> alone{&large};
  EXPECT_GE(memory_need(alone, kMiB).pinned_bytes, kMiB);
  EXPECT_GT(need_of(large).pinned_bytes, need_of(small).pinned_bytes);
}

}  // namespace
}  // namespace sluice::runtime
