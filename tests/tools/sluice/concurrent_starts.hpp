// Several runs started at once: in one log.dir each has a number of its own; with log.dirs of their
// own they share a storage path and never meet.
#pragma once

#include <set>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {

class ConcurrentStarts : public CliTest {
 protected:
  ConcurrentStarts() { hash_ = hash_of(succeed(arguments("alone", "alone/storage"))); }

  // starts: how many times 2 to 8 processes begin together.
  void start_together(int starts) {
    for (int i = 0; i < starts && !HasFailure(); ++i) {
      SCOPED_TRACE("start " + std::to_string(i));
      const int processes = 2 + i % 7;
      i % 2 == 0 ? on_one_log_dir(processes) : on_one_storage_path(processes);
    }
  }

 private:
  static Words arguments(const std::string& directory, const std::string& storage) {
    return train_words({"train.steps=1", "model.layers=1", "model.hidden=32",
                        "log.dir=" + directory, "memory.storage_paths=[\"" + storage + "\"]"});
  }

  std::vector<ChildOutcome> outcomes_of(const std::vector<Words>& commands) const {
    std::vector<std::unique_ptr<ChildProcess>> children;
    for (const Words& command : commands) children.push_back(start(command));
    std::vector<ChildOutcome> outcomes;
    for (const auto& child : children) outcomes.push_back(child->wait(kCliDeadline));
    return outcomes;
  }

  void on_one_log_dir(int processes) {
    const std::vector<Words> commands(static_cast<std::size_t>(processes),
                                      arguments("shared", "shared/storage"));
    std::set<std::string> directories;
    for (const ChildOutcome& outcome : outcomes_of(commands)) {
      ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
      EXPECT_EQ(hash_of(outcome), hash_);
      const Json plan = events_of(outcome, "plan").at(0);
      const std::filesystem::path run = plan.at("run_dir").get<std::string>();
      directories.insert(run.filename());
      // All files there are of this run.
      EXPECT_EQ(read_file(run / "events.jsonl"), outcome.out);
      const Json manifest = Json::parse(read_file(run / "checkpoints/step-00000001/manifest.json"));
      EXPECT_EQ(manifest.at("run_id"), plan.at("run_id"));
    }
    EXPECT_EQ(directories.size(), static_cast<std::size_t>(processes));
    EXPECT_EQ(std::filesystem::read_symlink(path("shared/latest")), *directories.rbegin());
    expect_nothing_left("shared");
  }

  void on_one_storage_path(int processes) {
    std::vector<Words> commands;
    for (int i = 0; i < processes; ++i) {
      commands.push_back(arguments("own" + std::to_string(i), "storage"));
    }
    std::set<std::string> ids;
    for (const ChildOutcome& outcome : outcomes_of(commands)) {
      ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
      EXPECT_EQ(hash_of(outcome), hash_);
      ids.insert(events_of(outcome, "plan").at(0).at("run_id"));
    }
    EXPECT_EQ(ids.size(), static_cast<std::size_t>(processes));
    EXPECT_TRUE(std::filesystem::is_empty(path("storage")));
    for (int i = 0; i < processes; ++i) expect_nothing_left("own" + std::to_string(i));
  }

  void expect_nothing_left(const std::string& directory) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path(directory))) {
      EXPECT_NE(entry.path().filename(), "lock") << entry.path();
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
    std::filesystem::remove_all(path(directory));
  }

  std::string hash_;
};

}  // namespace sluice::testing
