// What a fresh start sets aside: everything that an earlier run owned and nothing else, so that it
// can be resumed there.
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

const std::string kSaved = "checkpoint.dir=saved";

class SetAside : public CliTest {
 protected:
  // A fresh run of so many steps.
  ChildOutcome train(int steps, const Words& settings = {}) const {
    return succeed(words(steps, settings));
  }
  // Where the resume of `directory` went on from.
  std::string resume(int steps, const std::string& directory, const Words& settings = {}) const {
    Words resuming = words(steps, settings);
    resuming.insert(resuming.end(), {"--resume", directory});
    const std::vector<Json> events = events_of(succeed(resuming), "resume");
    return events.size() == 1 ? events[0].at("dir").get<std::string>() : "";
  }
  static Words words(int steps, const Words& settings) {
    Words words{"train", "config.toml", "--json", "--steps", std::to_string(steps)};
    if (!settings.empty()) words.emplace_back("--set");
    words.insert(words.end(), settings.begin(), settings.end());
    return words;
  }
  // Where a start says that the run before it is now, as one that can be resumed.
  static std::string now_in(const ChildOutcome& start) {
    const std::string before = "an earlier run is now in ";
    const auto begin = start.err.find(before);
    const auto end = start.err.find(", and can be resumed there");
    if (begin == std::string::npos || end == std::string::npos) return "nowhere: " + start.err;
    return start.err.substr(begin + before.size(), end - begin - before.size());
  }
  static bool can_be_resumed(const ChildOutcome& start) {
    return start.err.find("can be resumed there") != std::string::npos;
  }
  bool nothing_begun() const {
    return std::none_of(fs::recursive_directory_iterator(path()), {}, [](const auto& entry) {
      const std::string name = entry.path().filename().string();
      return name.starts_with("earlier-") && name.ends_with(".tmp");
    });
  }
};

TEST_F(SetAside, ARunThatSavedNothingTakesNobodysCheckpoint) {
  kill_after("step",
             {"train", "config.toml", "--json", "--set", kSaved, "memory.link_latency=20ms"});
  EXPECT_FALSE(can_be_resumed(train(2, {kSaved})));
  EXPECT_TRUE(fs::is_directory(path("run/earlier-1/checkpoints")));
  fs::create_directories(path("run/earlier-1/storage"));
  expect_refused({"train", "config.toml", "--set", kSaved, "--resume", "run/earlier-1"},
                 {"saved/step-00000002: was written by run ", "events.jsonl of 'run/earlier-1'"});
  expect_refused({"train", "config.toml", "--resume", "run/earlier-1"},
                 {"run/earlier-1/checkpoints: holds no checkpoint"});
}

TEST_F(SetAside, IsKnownByItsMarkAndNotByItsName) {
  train(2, {kSaved});
  EXPECT_TRUE(can_be_resumed(train(4, {kSaved})));
  fs::create_symlink("run/earlier-1", path("link"));
  for (const std::string name : {"run/earlier-1", "run/earlier-1/", "run/earlier-1/.", "link"}) {
    EXPECT_EQ(resume(2, name, {kSaved}), name + "/checkpoints/step-00000002");
  }
  fs::rename(path("run/earlier-1"), path("keep"));
  EXPECT_EQ(resume(3, "keep", {kSaved}), "keep/checkpoints/step-00000002");
  EXPECT_FALSE(fs::exists(path("saved/step-00000003")));
}

TEST_F(SetAside, ANameThatBeginsLikeOneMeansNothing) {
  train(2, {"log.dir=earlier-test"});
  train(3, {"log.dir=earlier-test", kSaved});
  EXPECT_EQ(resume(4, "earlier-test", {kSaved}), "saved/step-00000003");
}

TEST_F(SetAside, EachHasItsOwnCheckpointsWhereverThoseWere) {
  train(2);
  EXPECT_TRUE(can_be_resumed(train(4, {kSaved, "train.seed=2"})));
  EXPECT_TRUE(can_be_resumed(train(1)));
  EXPECT_EQ(resume(3, "run/earlier-1"), "run/earlier-1/checkpoints/step-00000002");
  EXPECT_EQ(resume(5, "run/earlier-2", {"train.seed=2"}),
            "run/earlier-2/checkpoints/step-00000004");
}

// A new run that begins in what was set aside is a run like others: the mark goes with the old one.
TEST_F(SetAside, AgainItIsAsBefore) {
  train(2, {kSaved});
  train(1, {kSaved});
  train(3, {"log.dir=run/earlier-1", "checkpoint.dir=third"});
  EXPECT_EQ(resume(3, "run/earlier-1", {"checkpoint.dir=third"}), "third/step-00000003");
  EXPECT_EQ(resume(2, "run/earlier-1/earlier-1", {kSaved}),
            "run/earlier-1/earlier-1/checkpoints/step-00000002");
}

TEST_F(SetAside, NumbersFollowEachOther) {
  for (const std::string name : {"saved/earlier-7", "run"}) fs::create_directories(path(name));
  write_file(path("saved/earlier-7/notes.txt"), "mine");
  for (const Words& settings : {Words{kSaved}, Words{}, Words{}}) train(1, settings);
  EXPECT_TRUE(fs::exists(path("run/earlier-8/checkpoints/step-00000001")));
  EXPECT_TRUE(fs::exists(path("run/earlier-9/checkpoints/step-00000001")));
  EXPECT_TRUE(fs::exists(path("saved/earlier-8/step-00000001")));
}

// Where checkpoint.dir is log.dir, too, and where it is so no longer.
TEST_F(SetAside, CheckpointsBesideTheFilesOfTheRunAreFound) {
  train(2, {"checkpoint.dir=run"});
  EXPECT_TRUE(can_be_resumed(train(3, {"checkpoint.dir=run"})));
  EXPECT_TRUE(can_be_resumed(train(1)));
  EXPECT_EQ(resume(2, "run/earlier-1"), "run/earlier-1/checkpoints/step-00000002");
  EXPECT_EQ(resume(3, "run/earlier-2"), "run/earlier-2/checkpoints/step-00000003");
  EXPECT_TRUE(nothing_begun());
}

// A directory that is not there is no run of which the checkpoints elsewhere could be.
TEST_F(SetAside, ADirectoryThatIsNotThereTakesNobodysCheckpoint) {
  train(2, {kSaved});
  expect_refused({"train", "config.toml", "--set", kSaved, "--resume", "run/earlier-1"},
                 {"--resume: 'run/earlier-1' is no directory"});
}

TEST_F(SetAside, CheckpointsStayWithinTheirDirectory) {
  train(2, {kSaved});
  train(1, {kSaved});
  EXPECT_TRUE(fs::exists(path("saved/earlier-1/step-00000002")));
  EXPECT_FALSE(fs::exists(path("saved.1")));
}

TEST_F(SetAside, CheckpointsStayOnTheirFileSystem) {
  for (const std::string name : {"run/checkpoints", "mounted"}) {
    SCOPED_TRACE(name);
    fs::create_directories(path(name));
    if (::mount("none", path(name).c_str(), "tmpfs", 0, "size=64m") != 0) {
      GTEST_SKIP() << "nothing can be mounted here";
    }
    fs::remove_all(path("run/earlier-1"));
    const Words settings{"checkpoint.dir=" + name};
    train(2, settings);
    const bool resumable = can_be_resumed(train(1, settings));
    const std::string from = resume(3, "run/earlier-1", settings);
    EXPECT_EQ(::umount(path(name).c_str()), 0);
    EXPECT_TRUE(resumable);
    EXPECT_EQ(from, "run/earlier-1/checkpoints/step-00000002");
    fs::remove_all(path("run"));
  }
}

TEST_F(SetAside, AnotherRunsCheckpointsAreNamedAndStayItsOwn) {
  train(2, {"log.dir=a", kSaved});
  const ChildOutcome second = train(1, {"log.dir=b", kSaved});
  EXPECT_FALSE(can_be_resumed(second)) << second.err;
  const Json manifest = Json::parse(read_file(path("saved/earlier-1/step-00000002/manifest.json")));
  for (const std::string& word :
       {manifest.at("run_id").get<std::string>(), std::string("are now in saved/earlier-1")}) {
    EXPECT_NE(second.err.find(word), std::string::npos) << second.err;
  }
  EXPECT_FALSE(fs::exists(path("b/earlier-1")));
  expect_refused({"train", "config.toml", "--set", kSaved, "--resume", "a"},
                 {"saved/step-00000001: was written by run ", "events.jsonl of 'a'"});
  EXPECT_EQ(resume(3, "a", {"checkpoint.dir=saved/earlier-1"}), "saved/earlier-1/step-00000002");
  EXPECT_EQ(resume(2, "b", {kSaved}), "saved/step-00000001");
}

// Whoever takes checkpoints along to a new directory may go on there, as often as it takes.
TEST_F(SetAside, CheckpointsAloneCanBeTakenToANewDirectory) {
  train(2);
  fs::create_directories(path("new"));
  fs::rename(path("run/checkpoints"), path("new/checkpoints"));
  EXPECT_EQ(resume(2, "new"), "new/checkpoints/step-00000002");
  EXPECT_EQ(resume(3, "new"), "new/checkpoints/step-00000002");
}

TEST_F(SetAside, AHalfWrittenCheckpointIsNothingToResume) {
  kill_after("step", {"train", "config.toml", "--json", "--set", "memory.link_latency=20ms"});
  fs::create_directories(path("run/checkpoints/step-00000001.tmp"));
  const ChildOutcome start = train(1);
  EXPECT_NE(start.err.find("an earlier run is now in run/earlier-1"), std::string::npos);
  EXPECT_FALSE(can_be_resumed(start)) << start.err;
}

TEST_F(SetAside, EveryFileOfTheRunGoesAlong) {
  train(2);
  succeed({"report", "run"});
  succeed({"report", "run", "--format", "perfetto"});
  train(1);
  for (const char* name : {"report.html", "trace.perfetto.json", "trace.json"}) {
    EXPECT_TRUE(fs::exists(path("run/earlier-1") / name)) << name;
  }
  EXPECT_FALSE(fs::exists(path("run/trace.perfetto.json")));
}

// Wherever it was killed: some of the names are there already, in this order or another.
TEST_F(SetAside, AStartThatWasKilledMeanwhileIsGoneOnWith) {
  train(2, {kSaved});
  train(1, {kSaved});
  const std::string mark = read_file(path("run/earlier-1/set-aside"));
  fs::remove_all(path("run/earlier-1"));
  fs::remove_all(path("saved/earlier-1"));
  const std::vector<Words> moved{{},
                                 {"step"},
                                 {"step", "config.toml"},
                                 {"config.toml", "events.jsonl", "weights.safetensors"},
                                 {"step", "config.toml", "events.jsonl", "weights.safetensors",
                                  "plan.json", "plan_trace.json", "trace.json"}};
  for (const Words& names : moved) {
    SCOPED_TRACE(names.size());
    const fs::path begun = path("run/earlier-1.tmp");
    fs::create_directories(begun);
    fs::create_directories(path("saved/earlier-1"));
    write_file(begun / "set-aside", mark);
    fs::create_directory_symlink(path("saved/earlier-1"), begun / "checkpoints");
    for (const std::string& name : names) {
      if (name == "step") {
        fs::rename(path("saved/step-00000001"), begun / "checkpoints/step-00000001");
      } else {
        fs::rename(path("run") / name, begun / name);
      }
    }
    const ChildOutcome start = train(1, {kSaved});
    EXPECT_TRUE(can_be_resumed(start)) << start.err;
    EXPECT_TRUE(nothing_begun());
    EXPECT_FALSE(fs::exists(path("run/earlier-2")));
    for (const char* name : {"config.toml", "events.jsonl", "weights.safetensors", "plan.json"}) {
      EXPECT_TRUE(fs::exists(path("run/earlier-1") / name)) << name;
    }
    EXPECT_EQ(resume(2, "run/earlier-1", {kSaved}), "run/earlier-1/checkpoints/step-00000001");
    fs::remove_all(path("run/earlier-1"));
    for (const auto& entry : fs::directory_iterator(path("saved"))) {
      if (entry.path().filename().string().starts_with("earlier-")) fs::remove_all(entry.path());
    }
  }
}

// A run that began after the killed start is another than the one that start was about.
TEST_F(SetAside, WhatWasBegunIsNotMixedWithARunThatCameAfter) {
  train(2);
  train(1);
  fs::rename(path("run/earlier-1"), path("run/earlier-1.tmp"));
  EXPECT_TRUE(can_be_resumed(train(1)));
  EXPECT_TRUE(nothing_begun());
  EXPECT_EQ(resume(2, "run/earlier-1"), "run/earlier-1/checkpoints/step-00000002");
  EXPECT_EQ(resume(2, "run/earlier-2"), "run/earlier-2/checkpoints/step-00000001");
}

// Its event log says where they went, whatever became of its configuration since.
TEST_F(SetAside, CheckpointsAreFoundWhereTheyWentAndNotWhereTheConfigurationSays) {
  train(2);
  const std::string config = read_file(path("run/config.toml"));
  const std::string key = "dir = \"run/checkpoints\"";
  const auto at = config.find(key);
  ASSERT_NE(at, std::string::npos) << config;
  write_file(path("run/config.toml"),
             std::string(config).replace(at, key.size(), "dir = \"other\""));
  EXPECT_TRUE(can_be_resumed(succeed({"train", "run/config.toml", "--steps", "1"})));
  EXPECT_EQ(resume(3, "run/earlier-1"), "run/earlier-1/checkpoints/step-00000002");
}

// A copy's event log tells of the original's.
TEST_F(SetAside, ACopyOfARunTakesNothingFromTheOriginal) {
  train(2);
  fs::create_directories(path("copy"));
  for (const char* name : {"config.toml", "events.jsonl"}) {
    fs::copy_file(path("run") / name, path("copy") / name);
  }
  EXPECT_FALSE(can_be_resumed(train(1, {"log.dir=copy"})));
  EXPECT_EQ(resume(3, "run"), "run/checkpoints/step-00000002");
}

TEST_F(SetAside, WhatAnothersStartCollectedComesBackToItsRun) {
  train(2, {"log.dir=a", kSaved});
  train(3, {"log.dir=b", kSaved});
  EXPECT_TRUE(fs::exists(path("saved/earlier-1/step-00000002")));
  const std::string a = now_in(train(1, {"log.dir=a", kSaved}));
  EXPECT_EQ(resume(3, a), a + "/checkpoints/step-00000002");
  EXPECT_FALSE(fs::exists(path("saved/earlier-1")));
  const std::string b = now_in(train(1, {"log.dir=b", kSaved}));
  EXPECT_EQ(resume(4, b), b + "/checkpoints/step-00000003");
  EXPECT_TRUE(nothing_begun());
}

TEST_F(SetAside, CheckpointsThatSomebodyUsesAreWaitedFor) {
  train(2, {kSaved});
  const auto holder = start({"train", "config.toml", "--json", "--set", "log.dir=b", kSaved,
                             "memory.link_latency=20ms", "train.steps=1000"});
  holder->wait_for_output(R"("event":"step")", kCliDeadline);
  const ChildOutcome refused =
      run({"train", "config.toml", "--set", "checkpoint.dir=elsewhere", "--steps", "1"});
  EXPECT_EQ(refused.exit_status, 2);
  for (const char* word : {"log.dir: the run in 'run' cannot be set aside with its checkpoints",
                           "saved' is in use by another run"}) {
    EXPECT_NE(refused.err.find(word), std::string::npos) << refused.err;
  }
  EXPECT_FALSE(fs::exists(path("run/earlier-1")));
  holder->send(SIGTERM);
  EXPECT_EQ(holder->wait(kCliDeadline).exit_status, 143);
  const std::string now = now_in(train(1, {"checkpoint.dir=elsewhere"}));
  EXPECT_EQ(resume(3, now), now + "/checkpoints/step-00000002");
}

TEST_F(SetAside, AConfigurationThatNoRunWroteIsKept) {
  const std::string own = "# mine\n" + read_file(path("config.toml"));
  fs::create_directories(path("run"));
  write_file(path("run/config.toml"), own);
  const ChildOutcome first = succeed({"train", "run/config.toml", "--steps", "1"});
  EXPECT_NE(first.err.find("is now 'run/config.toml.given'"), std::string::npos) << first.err;
  EXPECT_EQ(read_file(path("run/config.toml.given")), own);
  succeed({"train", "run/config.toml", "--steps", "1"});
  EXPECT_TRUE(fs::exists(path("run/earlier-1/config.toml")));
  EXPECT_EQ(read_file(path("run/config.toml.given")), own);
  fs::remove_all(path("run/events.jsonl"));
  fs::remove_all(path("run/checkpoints/step-00000001"));
  expect_refused({"train", "run/config.toml"}, {"'run/config.toml' was written by no run",
                                                "'run/config.toml.given' is there already"});
}

TEST_F(SetAside, AResumeThatFindsNothingSaysWhatWasSetAside) {
  train(2);
  train(1);
  fs::remove_all(path("run/checkpoints"));
  expect_refused({"train", "config.toml", "--resume", "run"},
                 {"holds no checkpoint", "resumed by its own name: 'run/earlier-1'"});
  fs::rename(path("run/earlier-1"), path("run/earlier-1.tmp"));
  expect_refused({"train", "config.toml", "--resume", "run"},
                 {"'run/earlier-1.tmp' is of a start that was killed"});
}

class DurableSetAside : public SetAside {
 protected:
  const Words durable_{"checkpoint.mode=durable", "checkpoint.every=1",
                       "memory.place.optimizer=storage"};

  std::vector<fs::path> data() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      if (entry.path().extension() == ".durable") files.push_back(entry.path());
    }
    return files;
  }
  fs::path only_log() const {
    for (const auto& entry : fs::directory_iterator(path("run/checkpoints"))) {
      if (entry.path().extension() == ".log") return entry.path();
    }
    return {};
  }
};

// The record names where its log was; that is gone, and yet the copy is not it.
TEST_F(DurableSetAside, ACopyThatIsResumedLeavesTheOriginalItsState) {
  train(2, durable_);
  train(1, durable_);
  const std::vector<fs::path> before = data();
  ASSERT_EQ(before.size(), 2u);
  fs::copy(path("run/earlier-1"), path("backup"), fs::copy_options::recursive);
  EXPECT_NE(resume(3, "backup", durable_), "");
  for (const fs::path& file : before) EXPECT_TRUE(fs::exists(file)) << file;
  EXPECT_NE(resume(3, "run/earlier-1", durable_), "");
  EXPECT_EQ(data().size(), 3u);  // the original's went when it was superseded
}

// A blank log names no data, and data go by the run's id: the copy's log has the original's.
TEST_F(DurableSetAside, ACopyMadeBeforeTheFirstCommitOwnsNothing) {
  const Words settings{durable_[0], "checkpoint.every=0", durable_[2],
                       "memory.storage_paths=[\"shared\"]", "train.steps=1000"};
  Words words{"train", "config.toml", "--json", "--set", "memory.link_latency=20ms"};
  words.insert(words.end(), settings.begin(), settings.end());
  const auto original = start(words);
  original->wait_for_output(R"("event":"step")", kCliDeadline);
  for (const char* copy : {"copy", "second"}) {
    fs::copy(path("run"), path(copy), fs::copy_options::recursive);
  }
  const std::vector<fs::path> before = data();
  ASSERT_EQ(before.size(), 1u);

  Words again{"train", "config.toml", "--resume", "copy", "--set"};
  again.insert(again.end(), settings.begin(), settings.end());
  EXPECT_EQ(run(again).exit_status, 2);
  EXPECT_TRUE(fs::exists(before[0]));
  Words fresh{"train", "config.toml", "--steps", "1", "--set", "log.dir=copy"};
  fresh.insert(fresh.end(), settings.begin(), settings.end());
  succeed(fresh);
  EXPECT_TRUE(fs::exists(before[0]));
  succeed({"doctor", "--clean", "second", "--yes"});
  EXPECT_TRUE(fs::exists(before[0]));

  original->send(SIGTERM);
  const ChildOutcome ended = original->wait(kCliDeadline);
  ASSERT_EQ(ended.exit_status, 143) << ended.err;
  ASSERT_EQ(events_of(ended).back().at("event"), "checkpoint");
  const auto step = events_of(ended).back().at("step").get<int>();
  words.insert(words.begin() + 2, {"--resume", "run", "--steps", std::to_string(step + 1)});
  EXPECT_EQ(events_of(succeed(words), "step").size(), 1u);
}

// However little is left of it: it may have been a commit.
TEST_F(DurableSetAside, StateWhoseLogIsCutShortIsKept) {
  const Words once{durable_[0], "checkpoint.every=0", durable_[2]};
  train(2, once);
  const fs::path log = only_log();
  ASSERT_FALSE(log.empty());
  const std::vector<fs::path> before = data();
  ASSERT_EQ(before.size(), 1u);
  for (const std::uintmax_t left : {20000u, 4096u, 1u, 0u}) {
    fs::resize_file(log, left);
    expect_refused(
        {"train", "config.toml", "--resume", "run"},
        {log.filename().string(), left > 0 ? "cannot be read" : "is empty, and data of"});
    EXPECT_TRUE(fs::exists(log)) << left;
    EXPECT_TRUE(fs::exists(before[0])) << left;
  }
  train(1, durable_);
  EXPECT_TRUE(fs::exists(before[0]));
}

// Its commit may be newer than what the resume would go on from.
TEST_F(DurableSetAside, ALogThatCannotBeOpenedEndsAResume) {
  train(2, {"memory.place.optimizer=storage"});
  EXPECT_NE(resume(3, "run", durable_), "");
  const fs::path log = only_log();
  ASSERT_FALSE(log.empty());
  ASSERT_TRUE(fs::exists(path("run/checkpoints/step-00000002")));
  fs::rename(log, path("elsewhere.log"));
  fs::create_symlink(path("elsewhere.log"), log);
  expect_refused({"train", "config.toml", "--resume", "run"},
                 {log.filename().string(), "put it back, or remove '"});
  fs::remove(log);
  fs::rename(path("elsewhere.log"), log);
  EXPECT_NE(resume(4, "run", durable_), "");
}

// Of the only record: it may have been a commit.
TEST_F(DurableSetAside, StateWhoseRecordIsDamagedIsKept) {
  const Words once{"checkpoint.mode=durable", "checkpoint.every=0",
                   "memory.place.optimizer=storage"};
  train(2, once);
  const fs::path log = only_log();
  ASSERT_FALSE(log.empty());
  std::string bytes = read_file(log);
  bytes[bytes.size() / 2 + 4096 + 100] ^= 1;  // in the second area, behind the header
  write_file(log, bytes);
  const std::vector<fs::path> before = data();
  ASSERT_EQ(before.size(), 1u);
  expect_refused({"train", "config.toml", "--resume", "run"},
                 {log.filename().string() + ": 1 of its two records cannot be read"});
  for (const Json& event : events_of(succeed({"doctor", "--clean", "run", "--json"}), "leftover")) {
    EXPECT_EQ(event.at("path").get<std::string>().find("sluice-"), std::string::npos) << event;
  }
  const ChildOutcome start = train(1, once);
  EXPECT_NE(start.err.find("an earlier run is now in run/earlier-1"), std::string::npos);
  EXPECT_FALSE(can_be_resumed(start)) << start.err;
  EXPECT_TRUE(fs::exists(before[0]));
  EXPECT_EQ(read_file(path("run/earlier-1/checkpoints") / log.filename()), bytes);
}

TEST_F(DurableSetAside, DoctorKnowsItByItsMark) {
  kill_after("checkpoint", {"train", "config.toml", "--json", "--set", durable_[0], durable_[1],
                            durable_[2], "memory.link_latency=20ms"});
  const std::string lock = read_file(path("run/lock"));
  train(1, durable_);
  fs::rename(path("run/earlier-1"), path("run/keep"));
  write_file(path("run/keep/lock"), lock);  // as a resume leaves it that was killed
  const ChildOutcome found = succeed({"doctor", "--clean", "run", "--json"});
  EXPECT_NE(found.out.find("run/keep/lock"), std::string::npos) << found.out;
  EXPECT_EQ(found.out.find("state of a durable run whose log is not here"), std::string::npos)
      << found.out;
}

TEST_F(SetAside, WhatCannotBeMovedIsRefusedInASentenceAndNothingIsLeft) {
  train(2, {kSaved});
  fs::create_directories(path("saved/lock"));  // which nobody can lock
  fs::create_directories(path("other"));
  expect_refused({"train", "config.toml", "--set", "checkpoint.dir=other"},
                 {"log.dir: what an earlier run left in 'run' cannot be set aside", "'saved/lock'",
                  "Is a directory"});
}

}  // namespace
}  // namespace sluice::testing
