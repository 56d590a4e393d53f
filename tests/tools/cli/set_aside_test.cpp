// What a fresh start sets aside: everything that an earlier run owned and nothing else, so that it
// can be resumed there.
#include <sys/mount.h>

#include <algorithm>

#include "tests/tools/cli/cli_fixture.hpp"

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
  expect_refused({"train", "config.toml", "--set", kSaved, "--resume", "run/earlier-1"},
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
