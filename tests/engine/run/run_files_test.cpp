// A start that fails leaves nothing behind: the directories that it made go with it.
#include "engine/run/run_files.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/thrown.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

class RunFilesTest : public ::testing::Test {
 private:
  testing::TrainingBench bench_;

 protected:
  fs::path log_dir() const { return given_.log.dir; }

  config::Config given_ = bench_.config(
      "deep/er", {"model.layers=1", "model.hidden=64", "model.heads=2", "model.vocab=256",
                  "model.max_seq=16", "train.seq=16", "train.steps=1", "train.micro_batch=1"});
};

TEST_F(RunFilesTest, AStartThatEndsBeforeItsRunBeginsLeavesNothing) {
  ASSERT_FALSE(fs::exists(log_dir().parent_path()));
  {
    config::Config config = given_;
    RunFiles files(config, given_, make_run_id());
    files.make_storage(config);
    ASSERT_TRUE(fs::is_directory(files.directory()));
  }
  EXPECT_FALSE(fs::exists(log_dir().parent_path()));
  // A log.dir that was there stays.
  fs::create_directories(log_dir());
  {
    config::Config config = given_;
    const RunFiles files(config, given_, make_run_id());
  }
  EXPECT_TRUE(fs::is_empty(log_dir()));
}

// Another user may have made the directory of a rank in storage that all can write in.
TEST_F(RunFilesTest, ARankTakesNoLinkAndNoForeignDirectory) {
  fs::create_directories(log_dir());
  const std::string storage = (log_dir() / "shared").string();
  const auto start = [&](config::Config::CheckpointMode mode) {
    config::Config config = given_;
    config.memory.storage_paths = {storage};
    config.checkpoint.mode = mode;
    config.checkpoint.dir = storage + "/checkpoints";
    RunFiles files(config, log_dir().string(), 1);
    files.make_storage(config);
  };
  using Mode = config::Config::CheckpointMode;
  fs::create_directories(log_dir() / "elsewhere");
  const fs::path own = storage + "/rank-1", commits = storage + "/checkpoints/rank-1";
  for (const auto& [path, mode] :
       {std::pair(own, Mode::kScratch), std::pair(commits, Mode::kDurable)}) {
    fs::create_directories(path.parent_path());
    fs::create_directory_symlink(log_dir() / "elsewhere", path);
    const std::string linked = testing::refusal_of([&] { start(mode); });
    EXPECT_EQ(linked.find("'" + path.string() + "' is not a directory"), 0u) << linked;
    fs::remove(path);
    // Only root can make a directory of another user.
    fs::create_directory(path);
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
      const std::string foreign = testing::refusal_of([&] { start(mode); });
      EXPECT_NE(foreign.find("' belongs to another user, number 65534"), std::string::npos)
          << foreign;
      ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
    }
    EXPECT_NO_THROW(start(mode));
  }
}

}  // namespace
}  // namespace sluice::run
