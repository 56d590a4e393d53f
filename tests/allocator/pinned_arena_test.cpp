#include "allocator/pinned_arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "device/host/host_device.hpp"
#include "tests/allocator/numa_recorder.hpp"
#include "tests/support/failing_device.hpp"

namespace sluice::allocator {
namespace {

// One field of this process's memory use in bytes (proc(5), /proc/self/status: "VmLck:  8 kB").
std::uint64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t kib = 0;
    if (fields >> name >> kib && name == key + ":") return kib * kKiB;
  }
  return 0;
}

// Sanitizers make mlock an empty success.
bool mlock_counts() {
  alignas(4096) static std::byte page[4096];
  const std::uint64_t before = status_bytes("VmLck");
  if (mlock(page, sizeof(page)) != 0) return false;
  const bool counted = status_bytes("VmLck") > before;
  munlock(page, sizeof(page));
  return counted;
}

// Whether any byte of [data, data + bytes) is mapped.
bool anything_mapped(const std::byte* data, std::uint64_t bytes) {
  const auto own_begin = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    const std::uintptr_t begin = std::strtoull(line.c_str(), &rest, 16);
    const std::uintptr_t end = std::strtoull(rest + 1, nullptr, 16);
    if (begin < own_begin + bytes && own_begin < end) return true;
  }
  return false;
}

class LimitGuard {
 public:
  // Lowers the soft limit to `bytes` for its lifetime.
  LimitGuard(int resource, std::uint64_t bytes) : resource_(resource) {
    EXPECT_EQ(getrlimit(static_cast<__rlimit_resource_t>(resource_), &before_), 0);
    const rlimit lowered{std::min<rlim_t>(bytes, before_.rlim_max), before_.rlim_max};
    EXPECT_EQ(setrlimit(static_cast<__rlimit_resource_t>(resource_), &lowered), 0);
  }
  ~LimitGuard() { setrlimit(static_cast<__rlimit_resource_t>(resource_), &before_); }
  LimitGuard(const LimitGuard&) = delete;
  LimitGuard& operator=(const LimitGuard&) = delete;

 private:
  const int resource_;
  rlimit before_{};
};

class PinnedArenaTest : public ::testing::Test {
 protected:
  std::unique_ptr<device::Device> inner_ = device::make_host_device({.capacity_bytes = 16 * kMiB});
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

// Charged minus asked. Nothing but 4 KiB pages is rounded to, so 1% holds from 400 KiB up for every
// size, and for whole pages at any.
TEST_F(PinnedArenaTest, WasteIsLessThanOnePage) {
  for (std::uint64_t asked = 64 * kKiB; asked < 8 * kMiB; asked += asked / 3 + 1) {
    for (const std::uint64_t bytes : {asked, round_up(asked, 4096), round_up(asked, 4096) + 1}) {
      const PinnedArena arena(device_, ledger_, bytes, Category::kWeight);
      const std::uint64_t waste_bytes = live_bytes() - bytes;
      EXPECT_EQ(waste_bytes, bytes % 4096 == 0 ? 0 : 4096 - bytes % 4096) << bytes;
      if (bytes >= 400 * kKiB) {
        EXPECT_LT(waste_bytes * 100, bytes) << bytes;
      }
    }
  }
}

// The charge equals the memory that the machine gives: small pages after the last whole huge page,
// and forbidden pages on both sides.
TEST_F(PinnedArenaTest, TakesNoMoreMemoryThanItCharges) {
  const PinnedArena arena(device_, ledger_, 5 * kMiB + 8192, Category::kWeight);
  EXPECT_EQ(resident_pages(arena.data(), arena.bytes()), arena.bytes() / 4096);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], arena.at(arena.bytes()) - 1, 1), 1);
  EXPECT_EQ(write(ends[1], arena.at(arena.bytes()), 1), -1);
  EXPECT_EQ(write(ends[1], arena.data() - 1, 1), -1);
  ASSERT_EQ(close(ends[0]), 0);
  ASSERT_EQ(close(ends[1]), 0);
}

TEST_F(PinnedArenaTest, HugePagesBackWholeOnes) {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  std::getline(setting, words);
  if (words.empty() || words.find("[never]") != std::string::npos ||
      prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) {
    GTEST_SKIP() << "transparent huge pages are off";
  }
  const NumaRecorder two_nodes("node:2(memory=68719476736) core:4 pu:1");
  for (const NumaMachine* machine :
       {static_cast<const NumaMachine*>(nullptr), static_cast<const NumaMachine*>(&two_nodes)}) {
    const PinnedArena arena(device_, ledger_, 7 * kMiB + 4096, Category::kWeight,
                            {.machine = machine});
    const PinnedArena beside(device_, ledger_, 512 * kKiB, Category::kWeight);
    EXPECT_EQ(beside.huge_page_bytes(), 0u);
    EXPECT_LE(arena.huge_page_bytes(), 6 * kMiB);
    EXPECT_EQ(arena.huge_page_bytes() % kHugePageBytes, 0u);
    // All of it, unless physical memory is in pieces; none at all would be a mistake of ours.
    EXPECT_GT(arena.huge_page_bytes(), 0u);
  }
}

TEST_F(PinnedArenaTest, IsRegisteredInPieces) {
  const std::uint64_t before = inner_->counters().registration_calls;
  const PinnedArena arena(device_, ledger_, 7 * kMiB + 4096, Category::kWeight,
                          {.registration_piece_bytes = 2 * kMiB});
  EXPECT_EQ(inner_->counters().registration_calls, before + 4);
  EXPECT_EQ(inner_->counters().peak_registered_bytes, arena.bytes());
  EXPECT_THROW(inner_->register_host(arena.at(7 * kMiB), 4096), InternalError);  // the last one too
  for (const std::uint64_t wrong : {std::uint64_t{0}, 3 * kMiB}) {
    EXPECT_THROW(
        PinnedArena(device_, ledger_, 4096, Category::kWeight, {.registration_piece_bytes = wrong}),
        InternalError);
  }
  EXPECT_EQ(live_bytes(), arena.bytes());
}

TEST_F(PinnedArenaTest, PagesGoWhereTheyAreWanted) {
  const NumaRecorder machine("node:2(memory=68719476736) core:4 pu:1");
  {
    const PinnedArena spread(device_, ledger_, 4 * kMiB, Category::kWeight, {.machine = &machine});
    const PinnedArena given(device_, ledger_, 4 * kMiB, Category::kWeight,
                            {.placement = NumaPlacement::kNode, .node = 1, .machine = &machine});
    const auto bound = machine.bound_memory();
    ASSERT_EQ(bound.size(), 3u);  // the host device hangs on no node: its arena is spread
    EXPECT_EQ(bound[1].data, spread.at(2 * kMiB));
    EXPECT_EQ(bound[1].node, 1u);
    EXPECT_EQ(bound[2].data, given.data());
    EXPECT_EQ(bound[2].bytes, given.bytes());
    EXPECT_EQ(bound[2].node, 1u);
  }
  device_.set_numa_node(1);
  const PinnedArena near(device_, ledger_, 4 * kMiB, Category::kWeight, {.machine = &machine});
  ASSERT_EQ(machine.bound_memory().size(), 4u);
  EXPECT_EQ(machine.bound_memory()[3].bytes, near.bytes());
  EXPECT_EQ(machine.bound_memory()[3].node, 1u);
}

// Each step that can fail does so once; then the same arena can be made.
TEST_F(PinnedArenaTest, AFailedConstructionLeavesNothingBehind) {
  const NumaRecorder machine("node:2(memory=68719476736) core:4 pu:1");
  constexpr std::uint64_t kBytes = 7 * kMiB + 4096;
  const PinnedArenaOptions options{.registration_piece_bytes = 2 * kMiB, .machine = &machine};
  const auto make = [&](const PinnedArenaOptions& with) {
    const PinnedArena arena(device_, ledger_, kBytes, Category::kWeight, with);
  };
  make(options);  // threads' stacks stay with the C library
  const std::uint64_t locked_before = status_bytes("VmLck");
  const auto expect_nothing = [&](std::size_t tried) {
    EXPECT_EQ(live_bytes(), 0u);
    EXPECT_EQ(status_bytes("VmLck"), locked_before);
    const auto bound = machine.bound_memory();
    if (tried == 0) return;
    EXPECT_FALSE(anything_mapped(static_cast<const std::byte*>(bound.back().data), 4096));
  };
  for (std::int64_t call = 0; call < 4; ++call) {
    SCOPED_TRACE("registration " + std::to_string(call));
    device_.fail_call(call);
    EXPECT_THROW(make(options), DeviceError);
    expect_nothing(1);
  }
  PinnedArenaOptions nowhere = options;
  nowhere.placement = NumaPlacement::kNode;
  nowhere.node = 7;
  EXPECT_THROW(make(nowhere), InputError);
  expect_nothing(0);
  const std::uint64_t addresses_before = status_bytes("VmSize");
  Ledger wide{{0, std::numeric_limits<std::uint64_t>::max(), 0}};
  const auto make_too_large = [&] {
    const PinnedArena arena(device_, wide, 256 * kMiB, Category::kWeight, options);
  };
  {
    const LimitGuard addresses(RLIMIT_AS, status_bytes("VmSize") + 64 * kMiB);  // mmap
    EXPECT_THROW(make_too_large(), DeviceError);
  }
  {
    const LimitGuard data(RLIMIT_DATA, status_bytes("VmData") + 64 * kMiB);  // mprotect
    EXPECT_THROW(make_too_large(), DeviceError);
  }
  EXPECT_THROW(PinnedArena(device_, wide, std::numeric_limits<std::uint64_t>::max() - 8192,
                           Category::kWeight),
               DeviceError);
  EXPECT_EQ(wide.totals(Tier::kPinned).live_bytes, 0u);
  EXPECT_LT(status_bytes("VmSize"), addresses_before + 128 * kMiB);  // each was to have 256 MiB
  // A registration left over would be counted next to these, or refuse them.
  const PinnedArena arena(device_, ledger_, kBytes, Category::kWeight, options);
  EXPECT_EQ(inner_->counters().peak_registered_bytes, arena.bytes());
}

TEST_F(PinnedArenaTest, DestructionGivesEverythingBack) {
  const std::uint64_t locked_before = status_bytes("VmLck");
  const std::byte* data = nullptr;
  {
    const PinnedArena arena(device_, ledger_, 3 * kMiB, Category::kWeight);
    data = arena.data();
    EXPECT_TRUE(anything_mapped(data - 4096, arena.bytes() + 8192));
    if (arena.locked() && mlock_counts()) {
      EXPECT_EQ(status_bytes("VmLck"), locked_before + arena.bytes());
    }
  }
  EXPECT_FALSE(anything_mapped(data - 4096, 3 * kMiB + 8192));
  EXPECT_EQ(status_bytes("VmLck"), locked_before);
}

// Lowers the limit for this process; a process that may lock past it (root) is not warned.
TEST_F(PinnedArenaTest, WarnsOnceWhereLockingIsNotAllowed) {
  const LimitGuard memlock(RLIMIT_MEMLOCK, 64 * kKiB);
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
}

}  // namespace
}  // namespace sluice::allocator
