// The files of a job's ranks: a start that fails leaves none, `doctor --clean` finds those of all
// ranks, and no rank goes on before the first has written its own.
#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/tools/sluice/rank_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

class RankFiles : public RankTest {
 protected:
  static Words durable_job(const Words& settings) {
    return train_words(rank_settings(2, 3,
                                     {kSlowLink, "train.steps=1000", "checkpoint.mode=durable",
                                      "memory.storage_paths=[\"shared\"]"}) +
                       settings);
  }
  static void kill_all(JobProcesses& job) {
    for (std::size_t rank = 0; rank < job.size(); ++rank) job.rank(rank).send(SIGKILL);
    job.wait(kCliDeadline);
  }
  std::vector<Json> stale_files() const {
    return events_of(succeed({"doctor", "--json", "--clean", "run"}), "stale");
  }
  std::string clean() const { return succeed({"doctor", "--clean", "run", "--yes"}).out; }
  std::string run_id() const {
    return Json::parse(read_file(path("run/0001/lock"))).at("run_id").get<std::string>();
  }
  // The newest step of which rank 1 says that it is saved; 0: none.
  int step_saved_on_rank_1() const {
    const fs::path events = path("run/0001/rank-1/events.jsonl");
    if (!fs::exists(events)) return 0;
    std::istringstream lines(read_file(events));
    int step = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line, nullptr, false);  // the last line may be half
      if (event.is_object() && event.value("event", "") == "checkpoint") step = event.at("step");
    }
    return step;
  }
  int newest_checkpoint() const {
    int newest = 0;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(path("run/0001/checkpoints"), ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-") && entry.path().extension() != ".tmp") {
        newest = std::max(newest, std::stoi(name.substr(5)));
      }
    }
    return newest;
  }
};

TEST_F(RankFiles, StaleFilesOfAllRanksAreListedAndRemoved) {
  const auto job = start_ranks(2, durable_job({"checkpoint.every=0"}));
  job->rank(0).wait_for_output(R"("event":"step")", kCliDeadline);
  EXPECT_TRUE(holds(clean(), "in use by process"));
  kill_all(*job);
  const std::string id = run_id();
  // As if the kill had come between the making of a storage file and its unlinking.
  const std::string storage = "shared/rank-1/sluice-" + id + "-0.state";
  const std::string half = "run/0001/rank-1/trace.json.tmp";
  write_file(path(storage), "scratch");
  write_file(path(half), "half");
  const std::vector<std::string> others{"shared/rank-1/sluice-" + std::string(32, '7') + "-0.state",
                                        "shared/rank-01/sluice-" + id + "-0.state",
                                        "run/0001/rank-1/notes.tmp"};
  fs::create_directories(path("shared/rank-01"));
  for (const std::string& other : others) write_file(path(other), "another's");

  const auto before = snapshot();
  std::set<std::string> listed;
  for (const Json& event : stale_files()) {
    EXPECT_TRUE(event.at("removable")) << event;
    // Within log.dir they are relative, as that is in the configuration.
    const fs::path file = path(event.at("path").get<std::string>());
    listed.insert(file.lexically_relative(path()).string());
  }
  EXPECT_EQ(snapshot(), before);
  const std::set<std::string> expected{"run/0001/lock",
                                       "run/0001/checkpoints/state-" + id + ".log",
                                       "run/0001/checkpoints/rank-1/state-" + id + ".log",
                                       "shared/sluice-" + id + "-0.durable",
                                       "shared/rank-1/sluice-" + id + "-0.durable",
                                       storage,
                                       half};
  EXPECT_EQ(listed, expected);
  clean();
  for (const std::string& file : expected) EXPECT_FALSE(fs::exists(path(file))) << file;
  for (const std::string& file : others) EXPECT_TRUE(fs::exists(path(file))) << file;
  EXPECT_TRUE(stale_files().empty());
}

TEST_F(RankFiles, CommittedStateOfAllRanksStays) {
  const auto job = start_ranks(2, durable_job({"checkpoint.every=1"}));
  job->rank(0).wait_for_output(R"("event":"checkpoint")", kCliDeadline);
  kill_all(*job);
  const std::string id = run_id();
  const fs::path log = path("run/0001/checkpoints/rank-1/state-" + id + ".log");
  fs::rename(log, path("moved.log"));
  // A moved log looks like a deleted one; the lock alone names the state.
  std::vector<fs::path> kept;
  for (const Json& event : stale_files()) {
    if (!event.at("removable")) kept.push_back(path(event.at("path").get<std::string>()));
  }
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0], path("run/0001/lock"));
  EXPECT_EQ(kept[1], path("shared/rank-1/sluice-" + id + "-0.durable"));
  clean();
  EXPECT_TRUE(fs::exists(kept[0]) && fs::exists(kept[1]));
  fs::rename(path("moved.log"), log);
  clean();
  EXPECT_FALSE(fs::exists(kept[0]));
  const ChildOutcome resumed = run_launched(
      2, {"train", "run", "--json", "--set", "train.steps=3", "memory.link_latency=0"});
  ASSERT_EQ(resumed.exit_status, 0) << resumed.err;
  EXPECT_GE(events_of(resumed, "resume").at(0).at("step"), 1);
}

// The first rank made the directories in which the others have theirs, so it removes them last. The
// empty log.dir stays, for another start may be about to use it.
TEST_F(RankFiles, AStartThatFailsOnOneRankLeavesNoFiles) {
  const Words first = Words{environment().at("SLUICE")} +
                      train_words(rank_settings(4, 3, {"checkpoint.mode=durable"}));
  // So that the first rank would be the quickest.
  const Words other = Words{"/usr/bin/nice", "-n", "19"} + first;
  const Words limited = Words{"/bin/sh", "-c", "ulimit -f 8; exec \"$0\" \"$@\""} + other;
  fs::create_directories(path("run"));
  const auto before = snapshot();
  for (int i = 0; i < 5; ++i) {
    JobProcesses job(
        {{first, path(), 0}, {other, path(), 1}, {other, path(), 2}, {limited, path(), 3}}, 4,
        environment());
    for (const ChildOutcome& outcome : job.wait(kCliDeadline)) {
      EXPECT_TRUE(outcome.exit_status == 2 || outcome.exit_status == 3) << outcome.err;
    }
    EXPECT_TRUE(snapshot() == before) << "files of a job that never began are left";
  }
}

// The first rank hashes and syncs a checkpoint alone.
TEST_F(RankFiles, NoRankCallsAStepSavedBeforeTheFirstHasSavedIt) {
  const auto job =
      start_ranks(2, train_words(rank_settings(
                         2, 3, {"train.steps=8", "checkpoint.every=1", "model.hidden=256"})));
  job->rank(0).wait_for_output(R"("event":"plan")", kCliDeadline);
  int saved = 0;
  const auto end = std::chrono::steady_clock::now() + kCliDeadline;
  while (saved < 8 && std::chrono::steady_clock::now() < end) {
    saved = step_saved_on_rank_1();
    ASSERT_LE(saved, newest_checkpoint());
  }
  EXPECT_EQ(saved, 8);
  for (const ChildOutcome& outcome : job->wait(kCliDeadline)) {
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  }
}

// It writes the export alone, too, for longer than a data call may last.
TEST_F(RankFiles, TheOthersWaitForTheExportInTheControlPlane) {
  const auto job = start_ranks(
      2, train_words(rank_settings(2, 3, {kSlowLink, "train.steps=3", "checkpoint.every=0"})));
  job->rank(0).wait_for_output(R"("event":"plan")", kCliDeadline);
  write_file(path("run/0001/huggingface"), "no directory");
  const std::vector<ChildOutcome> outcomes = job->wait(kCliDeadline);
  EXPECT_EQ(outcomes[0].exit_status, 3) << outcomes[0].err;
  EXPECT_TRUE(holds(outcomes[0].err, "huggingface"));
  EXPECT_EQ(outcomes[1].exit_status, 3);
  EXPECT_TRUE(holds(outcomes[1].err, "the export")) << outcomes[1].err;
}

}  // namespace
}  // namespace sluice::testing
