// Each start has a directory of its own, and takes nothing from another; RUN and LOGDIR on the
// command line.
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

const std::string kSaved = "checkpoint.dir=saved";

class RunDirectory : public CliTest {
 protected:
  // A new run of so many steps.
  ChildOutcome train(int steps, const Words& settings = {}) const {
    return succeed(train_words(Words{"train.seed=1"} + settings) +
                   Words{"--steps", std::to_string(steps)});
  }
  // The directory from which a resume of `run`, by its own configuration, went on.
  std::string resume(const std::string& run, int steps, const Words& more = {}) const {
    const Words words{"train", run, "--json", "--steps", std::to_string(steps)};
    const std::vector<Json> events = events_of(succeed(words + more), "resume");
    return events.size() == 1 ? events[0].at("dir").get<std::string>() : "";
  }
  std::string latest(const std::string& log_dir) const {
    return fs::read_symlink(path(log_dir + "/latest")).string();
  }
  // The part of the snapshot that lies below `directory`.
  std::map<std::string, std::string> below(const std::string& directory) const {
    auto files = snapshot();
    std::erase_if(files, [&](const auto& entry) { return !entry.first.starts_with(directory); });
    return files;
  }
};

TEST_F(RunDirectory, IsNewForEachStartAndTheOneBeforeStaysAsItIs) {
  train(2);
  const auto first = below("run/0001/");
  EXPECT_EQ(latest("run"), "0001");
  const ChildOutcome second = train(2, {"train.seed=2"});
  EXPECT_EQ(below("run/0001/"), first);
  EXPECT_EQ(latest("run"), "0002");
  EXPECT_NE(read_file(path("run/0002/weights.safetensors")),
            read_file(path("run/0001/weights.safetensors")));
  const Json plan = events_of(second, "plan").at(0);
  EXPECT_EQ(plan.at("log_dir"), path("run").string());
  EXPECT_EQ(plan.at("run_dir"), path("run/0002").string());
  for (const char* name : {"config.toml", "events.jsonl", "plan.json", "trace.json",
                           "checkpoints/step-00000002/manifest.json", "storage"}) {
    EXPECT_TRUE(fs::exists(path("run/0002") / name)) << name;
  }
  succeed({"report", "run"});
  EXPECT_TRUE(fs::exists(path("run/0002/report.html")));
}

TEST_F(RunDirectory, NumbersFollowTheHighestThatExists) {
  fs::create_directories(path("run/0041"));
  write_file(path("run/0041/notes"), "mine");
  write_file(path("run/00x9"), "");
  train(0);
  EXPECT_EQ(latest("run"), "0042");
  EXPECT_EQ(read_file(path("run/0041/notes")), "mine");
}

TEST_F(RunDirectory, AForeignFileInThePlaceOfTheLinkIsNotTouched) {
  fs::create_directories(path("run/latest"));
  expect_refused({"train", "config.toml"}, {"log.dir", "'run/latest' is in the way"});
}

// A start that fails after its directory was made leaves nothing.
TEST_F(RunDirectory, AStartThatFailsLeavesNoDirectory) {
  fs::create_directories(path("run"));
  write_file(path("saved"), "a file");
  expect_refused({"train", "config.toml", "--set", kSaved}, {"checkpoint.dir", "'saved'"});
  EXPECT_TRUE(fs::is_empty(path("run")));
}

TEST_F(RunDirectory, ACheckpointDirElsewhereHoldsADirectoryForEachRun) {
  train(2, {"log.dir=a", kSaved});
  train(3, {"log.dir=b", kSaved});
  EXPECT_EQ(std::distance(fs::directory_iterator(path("saved")), {}), 2);
  EXPECT_TRUE(fs::is_symlink(path("a/0001/checkpoints")));
  EXPECT_TRUE(resume("a", 4).ends_with("step-00000002"));
  EXPECT_TRUE(resume("b", 4).ends_with("step-00000003"));
  EXPECT_EQ(read_file(path("a/0001/weights.safetensors")),
            read_file(path("b/0001/weights.safetensors")));
  fs::rename(path("a"), path("moved"));
  EXPECT_TRUE(resume("moved", 5).ends_with("step-00000004"));
  fs::rename(path("saved"), path("away"));
  expect_refused({"train", "moved"}, {"'moved/0001/checkpoints' leads to", "is its disk mounted?"});
}

TEST_F(RunDirectory, ARunThatIsMovedWhileItRunsSavesNothingMore) {
  const auto child = begin_run();
  fs::rename(path("run/0001"), path("away"));
  child->send(SIGTERM);
  const ChildOutcome ended = child->wait(kCliDeadline);
  EXPECT_EQ(ended.exit_status, 3);
  EXPECT_TRUE(holds(ended.err, "is no longer the directory of this run"));
  EXPECT_TRUE(fs::is_empty(path("away/checkpoints")));
  EXPECT_FALSE(fs::exists(path("run/0001/checkpoints")));
}

TEST_F(RunDirectory, ACheckpointDirWithinLogDirMovesWithIt) {
  train(2, {"checkpoint.dir=run/saved", "memory.storage_paths=[\"run/fast\"]"});
  EXPECT_TRUE(fs::exists(path("run/0001/fast")));
  fs::rename(path("run"), path("moved"));
  EXPECT_TRUE(resume("moved", 3).ends_with("step-00000002"));
  EXPECT_FALSE(fs::exists(path("run")));
}

// The newest run comes first; one without a valid state is passed over, with a message.
TEST_F(RunDirectory, AResumeOfALogDirTakesTheNewestRunWithAState) {
  train(2);
  train(3);
  kill_after("step", train_words({kSlowLink}));
  EXPECT_EQ(latest("run"), "0003");
  const ChildOutcome resumed = succeed({"train", "config.toml", "--steps", "3", "--resume"});
  EXPECT_TRUE(holds(resumed.err, "run passed over: run/0003/checkpoints: holds no checkpoint"));
  EXPECT_EQ(resume("run", 3), "run/0002/checkpoints/step-00000003");
  EXPECT_EQ(resume("run/0001", 3), "run/0001/checkpoints/step-00000002");
  fs::resize_file(path("run/0002/checkpoints/step-00000003/state.safetensors"), 100);
  EXPECT_EQ(resume("run", 4), "run/0001/checkpoints/step-00000003");
  EXPECT_EQ(latest("run"), "0003");  // the newest start
  fs::remove_all(path("run/0001"));
  expect_refused({"train", "run/0002"}, {"state.safetensors"});
  EXPECT_EQ(run({"train", "run"}).exit_status, 2);
}

TEST_F(RunDirectory, ARunIsResumedByItsOwnConfiguration) {
  train(2);
  train(6, {"log.dir=whole"});
  fs::remove(path("config.toml"));
  const ChildOutcome outcome = succeed({"train", "run", "--json"});
  EXPECT_EQ(events_of(outcome, "step").size(), 4u);
  EXPECT_EQ(read_file(path("run/0001/weights.safetensors")),
            read_file(path("whole/0001/weights.safetensors")));
  EXPECT_FALSE(fs::exists(path("run/0002")));
  std::size_t plans = 0;
  for (const std::string& line : lines_of(read_file(path("run/0001/events.jsonl")))) {
    if (Json::parse(line).at("event") == "plan") ++plans;
  }
  EXPECT_EQ(plans, 2u);  // appended
  succeed({"train", "--resume", "run/latest"});
  succeed({"train", "run/0001/config.toml", "--steps", "1"});  // a new run with its settings
  EXPECT_EQ(latest("run"), "0002");
}

TEST_F(RunDirectory, ADirectoryWithoutARunIsRefused) {
  fs::create_directories(path("empty"));
  expect_refused({"train", "empty"}, {"'empty' is not a run's directory, and no run lies in it"});
  expect_refused({"train", "config.toml", "--resume", "none"},
                 {"--resume: 'none' is not a directory"});
  expect_refused({"train", "config.toml", "--resume"}, {"--resume: 'run' is not a directory"});
  expect_refused({"train"}, {"name a configuration, or the directory of a run"});
  expect_refused({"train", "empty", "--resume", "run"}, {"are two runs to resume"});
}

TEST_F(RunDirectory, AStartWithoutRoomNamesTheBytesThatCleaningFrees) {
  train(1);
  write_file(path("run/0001/weights.safetensors.tmp"), std::string(3 << 20, 'x'));
  expect_refused({"train", "config.toml", "--set", "memory.storage=1000TiB"},
                 {"memory.storage", "`sluice doctor --clean run --yes` frees 3.00 MiB"});
}

TEST_F(RunDirectory, NoStepsWriteTheInitialWeights) {
  const ChildOutcome outcome = train(0);
  EXPECT_EQ(events_of(outcome, "done").at(0).at("steps"), 0);
  EXPECT_EQ(hash_of(train(0, {"checkpoint.mode=durable"})), hash_of(outcome));
  EXPECT_NE(hash_of(train(0, {"train.seed=2"})), hash_of(outcome));
}

// --- durable runs: a log owns its data -----------------------------------------------------------

class DurableDirectory : public RunDirectory {
 protected:
  const Words durable_{"checkpoint.mode=durable", "checkpoint.every=0",
                       "memory.place.optimizer=storage"};

  fs::path only_file(const std::string& suffix) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      if (entry.path().extension() == suffix) found.push_back(entry.path());
    }
    EXPECT_EQ(found.size(), 1u) << suffix;
    return found.empty() ? fs::path() : found[0];
  }
};

// A blank log names no data, and data go by the run's id: the copy's log has the original's.
TEST_F(DurableDirectory, ACopyMadeBeforeTheFirstCommitOwnsNothing) {
  const auto original = begin_run(durable_ + Words{"memory.storage_paths=[\"shared\"]"});
  for (const char* copy : {"copy", "second"}) {
    fs::copy(path("run/0001"), path(copy), fs::copy_options::recursive);
  }
  const fs::path data = only_file(".durable");
  EXPECT_EQ(run({"train", "copy"}).exit_status, 2);
  EXPECT_TRUE(fs::exists(data));
  succeed({"doctor", "--clean", "second", "--yes"});
  EXPECT_TRUE(fs::exists(data));
  const ChildOutcome ended = end_run(*original);
  ASSERT_EQ(events_of(ended).back().at("event"), "checkpoint");
  EXPECT_NE(resume("run", events_of(ended).back().at("step").get<int>()), "");
}

// However little is left of it: it may have been a commit.
TEST_F(DurableDirectory, StateWithACutOrDamagedLogIsKept) {
  train(2, durable_);
  const fs::path log = only_file(".log");
  const fs::path data = only_file(".durable");
  const std::string whole = read_file(log);
  std::string damaged = whole;
  damaged[damaged.size() / 2 + 4096 + 100] ^= 1;  // in the second area, after the header
  write_file(log, damaged);
  expect_refused({"train", "run"},
                 {log.filename().string() + ": 1 of its two records cannot be read"});
  for (const std::size_t left : {20000u, 4096u, 1u, 0u}) {
    write_file(log, whole.substr(0, left));
    expect_refused({"train", "run"}, {log.filename().string(),
                                      left > 0 ? "cannot be read" : "is empty, and data of"});
  }
  succeed({"doctor", "--clean", "run", "--yes"});
  train(1, durable_);
  EXPECT_TRUE(fs::exists(log));
  EXPECT_TRUE(fs::exists(data));
}

// Its commit may be newer than the one that the resume would go on from.
TEST_F(DurableDirectory, ALogThatCannotBeOpenedEndsAResume) {
  train(2, {"memory.place.optimizer=storage"});
  resume("run", 3, {"--set", durable_[0], durable_[1]});
  const fs::path log = only_file(".log");
  fs::rename(log, path("elsewhere.log"));
  fs::create_symlink(path("elsewhere.log"), log);
  expect_refused({"train", "run"}, {log.filename().string(), "put it back, or remove '"});
  fs::remove(log);
  fs::rename(path("elsewhere.log"), log);
  EXPECT_NE(resume("run", 4), "");
}

// A commit to a file that cannot be found again is no commit.
TEST_F(DurableDirectory, ARunWithLostStateFilesEndsWithoutSayingSaved) {
  for (const char* suffix : {".durable", ".log"}) {
    SCOPED_TRACE(suffix);
    fs::remove_all(path("run"));
    const auto child = begin_run(durable_ + Words{"checkpoint.every=5", "memory.link_latency=5ms"});
    const fs::path file = only_file(suffix);
    fs::remove(file);
    const ChildOutcome ended = child->wait(kCliDeadline);
    EXPECT_EQ(ended.exit_status, 3) << ended.err;
    EXPECT_TRUE(events_of(ended, "checkpoint").empty());
    EXPECT_TRUE(holds(ended.err, file.filename().string() + "' is no longer the file"));
  }
}

}  // namespace
}  // namespace sluice::testing
