// Budgets against the machine. Its room is read once, so files that others write meanwhile
// refuse nothing.
#include "engine/planner/machine_check.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/error.hpp"
#include "engine/planner/default_budgets.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::planner {
namespace {

config::Config small_budgets() {
  config::Config config;
  config.memory.device_bytes = kMiB;
  config.memory.pinned_bytes = kMiB;
  config.memory.storage_paths = {std::filesystem::temp_directory_path().string()};
  return config;
}

TEST(SettleBudgets, AutoStorageIsTheFreeSpaceUpToItsMaximum) {
  config::Config config = small_budgets();
  const MachineRoom room = settle_budgets(config);
  EXPECT_GT(room.memory_bytes, 2 * kMiB);
  EXPECT_EQ(config.memory.storage_bytes, std::min(room.storage_bytes, kMostAutoStorageBytes));
}

// A GPU's memory is its own: the budgets of device and pinned memory are held apart.
TEST(SettleBudgets, AGpusMemoryIsNotTheHosts) {
  config::Config config = small_budgets();
  config.memory.device_bytes = std::uint64_t{1} << 60;
  EXPECT_NO_THROW(settle_budgets(config, std::uint64_t{1} << 60));
  config.memory.device_bytes = 3 * kMiB;
  const std::string words =
      testing::message_of<InputError>([&] { settle_budgets(config, 2 * kMiB); });
  EXPECT_TRUE(testing::holds(words, "memory.device = 3MiB"));
  EXPECT_TRUE(testing::holds(words, "free on the GPU"));
  config.memory.pinned_bytes = std::uint64_t{1} << 60;
  EXPECT_THROW(settle_budgets(config, 4 * kMiB), InputError);
}

TEST(SettleBudgets, PathsOnOneFileSystemShareItsRoom) {
  config::Config one = small_budgets();
  config::Config two = small_budgets();
  two.memory.storage_paths.push_back(two.memory.storage_paths.front() + "/second");
  const std::uint64_t alone = settle_budgets(one).storage_bytes;
  const std::uint64_t shared = settle_budgets(two).storage_bytes;
  // Another program may write between the two readings.
  EXPECT_NEAR(static_cast<double>(shared), static_cast<double>(alone), 0.05 * alone);
}

// Paths on one file system share its room: their total counts there, however it is split.
TEST(StorageShares, APathWithoutRoomIsNamedAndSharesAreConfigurable) {
  config::Config config = small_budgets();
  config.memory.storage_paths.push_back(config.memory.storage_paths.front() + "/second");
  EXPECT_EQ(configured_layout(config).shares(), (std::vector<std::uint32_t>{1, 1}));
  config.memory.storage_shares = {6, 2};
  const offload::StripeLayout layout = configured_layout(config);
  EXPECT_EQ(layout.shares(), (std::vector<std::uint32_t>{3, 1}));
  EXPECT_TRUE(paths_without_room(config, layout, kMiB).empty());
  EXPECT_EQ(paths_without_room(config, layout, std::uint64_t{1} << 60),
            (std::vector<std::size_t>{0, 1}));
  EXPECT_THROW(check_storage_paths(config, std::uint64_t{1} << 60), InputError);
}

// Room for checkpoints and weights was checked for even shares: where they lie no path gets more.
TEST(StorageShares, APathBesideTheCheckpointsGetsNoMoreThanAnEvenShare) {
  struct stat memory {
  }, disk{};
  config::Config config = small_budgets();
  ASSERT_EQ(stat(config.memory.storage_paths.front().c_str(), &disk), 0);
  if (stat("/dev/shm", &memory) != 0 || memory.st_dev == disk.st_dev) {
    GTEST_SKIP() << "there is one file system";
  }
  config.memory.storage_paths.push_back("/dev/shm");
  config.checkpoint.dir = "/dev/shm";
  config.log.dir = "/dev/shm";
  EXPECT_TRUE(paths_without_room(config, offload::StripeLayout({3, 1}), 16 * kMiB).empty());
  EXPECT_EQ(paths_without_room(config, offload::StripeLayout({1, 3}), 16 * kMiB),
            (std::vector<std::size_t>{1}));
}

TEST(SettleBudgets, MoreThanIsFreeIsRefusedWithBothSizes) {
  config::Config config = small_budgets();
  config.memory.storage_bytes = std::uint64_t{1} << 60;
  EXPECT_TRUE(testing::holds(testing::message_of<InputError>([&] { settle_budgets(config); }),
                             "memory.storage = 1048576TiB is more than the"));
}

TEST(KeepPossibleSuggestions, HoldsThemAgainstTheRoomThatWasRead) {
  config::Config config = small_budgets();
  config.memory.storage_bytes = 8 * kGiB;
  Refusal refusal;
  refusal.suggestions = {{{"memory.pinned", 2 * kGiB}},
                         {{"memory.storage", 9 * kGiB}},
                         {{"memory.device", 2 * kGiB}, {"memory.pinned", 3 * kGiB}}};
  // Exactly the bytes that were free when "auto" became a number: the number stays possible.
  keep_possible_suggestions(refusal, config, {4 * kGiB, 8 * kGiB});
  ASSERT_EQ(refusal.suggestions.size(), 1u);
  EXPECT_EQ(refusal.suggestions[0], (Suggestion{{"memory.pinned", 2 * kGiB}}));
}

}  // namespace
}  // namespace sluice::planner
