// A start that fails leaves nothing behind: the directories that it made go with it.
#include "engine/run/run_files.hpp"

#include <gtest/gtest.h>

#include <filesystem>

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

}  // namespace
}  // namespace sluice::run
