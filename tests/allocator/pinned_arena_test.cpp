#include "allocator/pinned_arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "base/log.hpp"
#include "device/host/host_device.hpp"
#include "tests/allocator/failing_device.hpp"

namespace sluice {
namespace {

class PinnedArenaTest : public testing::Test {
 protected:
  std::unique_ptr<Device> inner_ = make_host_device({.capacity_bytes = 16 * kMiB});
  FailingDevice device_{*inner_};
  Ledger ledger_{{16 * kMiB, 8 * kMiB, 0}};

  std::uint64_t live_bytes() const { return ledger_.totals(Tier::kPinned).live_bytes; }
};

TEST_F(PinnedArenaTest, ChargesItsExactSizeInWholePages) {
  const std::uint64_t registrations = inner_->counters().registration_calls;
  {
    const PinnedArena arena(device_, ledger_, 3 * kMiB + 1, Category::kOptimizer);
    EXPECT_EQ(arena.bytes(), 3 * kMiB + 4096);
    EXPECT_EQ(live_bytes(), arena.bytes());
    const auto by_category = ledger_.totals(Tier::kPinned).live_by_category;
    EXPECT_EQ(by_category[static_cast<std::size_t>(Category::kOptimizer)], arena.bytes());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.data()) % (2 * kMiB), 0u);
    EXPECT_EQ(arena.at(4096), arena.data() + 4096);
    EXPECT_THROW(static_cast<void>(arena.at(arena.bytes() + 1)), InternalError);
    EXPECT_EQ(inner_->counters().registration_calls, registrations + 1);
    std::fill_n(arena.data(), arena.bytes(), std::byte{0x5a});  // all of it is ours
  }
  EXPECT_EQ(live_bytes(), 0u);
}

TEST_F(PinnedArenaTest, EveryPageIsResidentBeforeItsFirstUse) {
  const PinnedArena arena(device_, ledger_, 2 * kMiB + 12288, Category::kWeight);
  std::vector<unsigned char> resident(arena.bytes() / static_cast<std::uint64_t>(getpagesize()));
  ASSERT_EQ(mincore(arena.data(), arena.bytes(), resident.data()), 0);
  EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](auto flag) { return flag & 1; }));
}

TEST_F(PinnedArenaTest, NothingIsMappedPastTheCap) {
  EXPECT_THROW(PinnedArena(device_, ledger_, 8 * kMiB + 1, Category::kWeight), OutOfMemory);
  EXPECT_THROW(
      PinnedArena(device_, ledger_, std::numeric_limits<std::uint64_t>::max(), Category::kWeight),
      OutOfMemory);
  EXPECT_EQ(device_.calls(), 0u);
  EXPECT_EQ(live_bytes(), 0u);
  const PinnedArena all(device_, ledger_, 8 * kMiB, Category::kWeight);
  EXPECT_EQ(live_bytes(), 8 * kMiB);
}

TEST_F(PinnedArenaTest, ZeroBytesNeedNothing) {
  const PinnedArena arena(device_, ledger_, 0, Category::kWeight);
  EXPECT_EQ(arena.data(), nullptr);
  EXPECT_EQ(arena.bytes(), 0u);
  EXPECT_EQ(device_.calls(), 0u);
}

TEST_F(PinnedArenaTest, AFailedRegistrationGivesTheChargeBack) {
  device_.fail_call(0);
  EXPECT_THROW(PinnedArena(device_, ledger_, kMiB, Category::kWeight), DeviceError);
  EXPECT_EQ(live_bytes(), 0u);
}

// Lowers the limit for this process; a process that may lock past it (root) is not warned.
TEST_F(PinnedArenaTest, WarnsOnceWhereLockingIsNotAllowed) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit lowered{std::min<rlim_t>(64 * kKiB, before.rlim_max), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lowered), 0);
  std::mutex mutex;
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::kWarning) warnings.push_back(line);
  });
  {
    const PinnedArena arena(device_, ledger_, kMiB, Category::kWeight);
    EXPECT_EQ(warnings.size(), arena.locked() ? 0u : 1u);
    if (!arena.locked() && !warnings.empty()) {
      EXPECT_NE(warnings[0].find("RLIMIT_MEMLOCK"), std::string::npos);
    }
  }
  set_log_sink({});
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

}  // namespace
}  // namespace sluice
