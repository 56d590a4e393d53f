// Runs apart from each other: who may read their files, who holds a directory, and what is left of
// one that was killed.
#include <signal.h>
#include <sys/stat.h>

#include "tests/tools/sluice/concurrent_starts.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

TEST_F(ConcurrentStarts, NeverMeet) {
  start_together(10);
}

constexpr const char* kLatency = "memory.link_latency=20ms";

class Isolation : public CliTest {
 protected:
  // A run that is killed after its first step.
  void kill_a_run(const Words& more = {}) { kill_after("step", slow_run(more)); }
  static Words slow_run(const Words& more) {
    Words arguments{"train", "config.toml", "--json", "--set", kLatency};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // A durable run that is killed after its first commit. Returns its run id.
  std::string kill_a_durable_run(const std::string& checkpoint_dir) {
    kill_after(
        "checkpoint",
        slow_run({"checkpoint.mode=durable", "checkpoint.every=1", "memory.place.optimizer=storage",
                  "memory.storage_paths=[\"shared\"]", "checkpoint.dir=" + checkpoint_dir}));
    return Json::parse(read_file(path("run/lock"))).at("run_id");
  }
  // What doctor finds of that run's state.
  std::vector<Json> state_listed(const std::string& run_id) const {
    std::vector<Json> listed =
        events_of(succeed({"doctor", "--clean", "run", "--json"}), "leftover");
    std::erase_if(listed, [&](const Json& event) {
      return event.at("path").get<std::string>().find("sluice-" + run_id) == std::string::npos;
    });
    return listed;
  }
  // One that lives until it is told to end, however long a test takes.
  std::unique_ptr<ChildProcess> begin(const Words& more = {}) {
    Words arguments = slow_run(more);
    arguments.push_back("train.steps=1000");
    auto child = start(arguments);
    child->wait_for_output(R"("event":"step")", kCliDeadline);
    return child;
  }
  // What a run that is killed while it saves, or between making a storage file and unlinking it,
  // leaves behind.
  void leave_files() {
    const Json lock = Json::parse(read_file(path("run/lock")));
    const std::string id = lock.at("run_id");
    fs::create_directories(path("run/checkpoints/step-00000009.tmp"));
    write_file(path("run/checkpoints/step-00000009.tmp/state.safetensors"), "half");
    write_file(path("run/weights.safetensors.tmp"), "half");
    write_file(path("run/storage/sluice-" + id + "-0.state"), "scratch");
    write_file(path("run/storage/notes.state"), "not a run's");
  }
};

TEST_F(Isolation, FilesAreTheirOwnersAlone) {
  // Whatever the caller's mask would let through.
  const mode_t before = ::umask(0);
  succeed({"train", "config.toml", "--set", "checkpoint.every=3", "--set",
           "memory.storage_paths=[\"deep/er/storage\"]"});
  ::umask(before);
  std::size_t seen = 0;
  for (const char* root : {"run", "deep"}) {
    const auto private_mode = [&](const fs::path& entry, bool directory) {
      ++seen;
      const auto mode = fs::status(entry).permissions() & fs::perms::all;
      const fs::perms owner = fs::perms::owner_read | fs::perms::owner_write;
      EXPECT_EQ(mode, directory ? owner | fs::perms::owner_exec : owner) << entry;
    };
    private_mode(path(root), true);
    for (const auto& entry : fs::recursive_directory_iterator(path(root))) {
      private_mode(entry.path(), entry.is_directory());
    }
  }
  EXPECT_GT(seen, 12u);
}

TEST_F(Isolation, ARefusalNamesTheRunThatHoldsTheDirectory) {
  const auto child = begin();
  const Json lock = Json::parse(read_file(path("run/lock")));
  const ChildOutcome refused = run({"train", "config.toml"});
  EXPECT_EQ(refused.exit_status, 2);
  for (const std::string& word :
       {std::string("log.dir: 'run' is in use by another run"),
        "process " + std::to_string(lock.at("pid").get<int>()),
        "host " + lock.at("host").get<std::string>(), lock.at("run_id").get<std::string>(),
        "since " + lock.at("started").get<std::string>()}) {
    EXPECT_NE(refused.err.find(word), std::string::npos) << refused.err;
  }
  child->send(SIGTERM);
  EXPECT_EQ(child->wait(kCliDeadline).exit_status, 143);
  EXPECT_FALSE(fs::exists(path("run/lock")));
}

TEST_F(Isolation, WhatAKilledRunLeftIsListedAndTakenAway) {
  kill_a_run();
  leave_files();
  const auto before = snapshot();
  const Words listing{"doctor", "--clean", "run", "--json"};
  const ChildOutcome outcome = succeed(listing);
  const std::vector<Json> listed = events_of(outcome, "leftover");
  EXPECT_EQ(listed.size(), 5u) << outcome.out;  // two locks, a storage file, a checkpoint, a file
  for (const Json& event : listed) EXPECT_EQ(event.at("removed"), false);
  EXPECT_EQ(snapshot(), before);  // looking changes nothing

  const ChildOutcome cleaned = succeed({"doctor", "--clean", "run", "--yes"});
  EXPECT_NE(cleaned.out.find("step-00000009.tmp"), std::string::npos) << cleaned.out;
  auto expected = before;
  for (const Json& event : listed) {
    const std::string left = event.at("path");
    std::erase_if(expected, [&](const auto& entry) {
      return entry.first == left || entry.first.starts_with(left + "/");
    });
  }
  EXPECT_EQ(snapshot(), expected);
  EXPECT_TRUE(fs::exists(path("run/storage/notes.state")));
  EXPECT_TRUE(events_of(succeed(listing), "leftover").empty());
  succeed({"train", "config.toml"});  // and the directory is free
}

TEST_F(Isolation, WhatALiveRunHoldsIsLeftAlone) {
  const auto child = begin();
  leave_files();
  const ChildOutcome outcome = succeed({"doctor", "--clean", ".", "--yes"});
  EXPECT_NE(outcome.out.find("in use by process"), std::string::npos) << outcome.out;
  EXPECT_TRUE(fs::exists(path("run/lock")));
  EXPECT_TRUE(fs::exists(path("run/weights.safetensors.tmp")));
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step-00000009.tmp")));
  child->send(SIGTERM);
  EXPECT_EQ(child->wait(kCliDeadline).exit_status, 143);
}

TEST_F(Isolation, OfASharedStoragePathOnlyTheDeadRunsFilesGo) {
  kill_a_run({"memory.storage_paths=[\"shared\"]"});
  const std::string id = Json::parse(read_file(path("run/lock"))).at("run_id");
  const std::string own = "shared/sluice-" + id + "-0.state";
  const std::string other = "shared/sluice-" + std::string(32, '7') + "-0.state";
  write_file(path(own), "dead");
  write_file(path(other), "another run's");
  succeed({"doctor", "--clean", "run", "--yes"});
  EXPECT_FALSE(fs::exists(path(own)));
  EXPECT_TRUE(fs::exists(path(other)));
}

// Of a durable run that was killed before its first commit; its lock says where they lie.
TEST_F(Isolation, FilesOfARunThatCommittedNothingAreFoundWhateverPathsAreConfiguredNow) {
  const auto durable_in = [](const std::string& directory) {
    return Words{"checkpoint.mode=durable", "checkpoint.every=0", "memory.place.optimizer=storage",
                 "memory.storage_paths=[\"" + directory + "\"]"};
  };
  // By the next start.
  kill_a_run(durable_in("first"));
  EXPECT_FALSE(fs::is_empty(path("first")));
  Words again{"train", "config.toml", "--set"};
  for (const std::string& word : durable_in("second")) again.push_back(word);
  succeed(again);
  EXPECT_TRUE(fs::is_empty(path("first")));
  // By doctor, where config.toml is another run's.
  kill_a_run(durable_in("first"));
  EXPECT_FALSE(fs::is_empty(path("first")));
  std::string config = read_file(path("run/config.toml"));
  const auto at = config.find("\"first\"");
  ASSERT_NE(at, std::string::npos);
  write_file(path("run/config.toml"), config.replace(at, 7, "\"third\""));
  succeed({"doctor", "--clean", "run", "--yes"});
  EXPECT_TRUE(fs::is_empty(path("first")));
}

TEST_F(Isolation, AFreshStartKeepsWhatAnEarlierRunWrote) {
  succeed({"train", "config.toml", "--set", "train.seed=1"});
  const std::string events = read_file(path("run/events.jsonl"));
  const std::string weights = read_file(path("run/weights.safetensors"));
  succeed({"train", "config.toml", "--set", "train.seed=2"});
  EXPECT_EQ(read_file(path("run/earlier-1/events.jsonl")), events);
  EXPECT_EQ(read_file(path("run/earlier-1/weights.safetensors")), weights);
  EXPECT_NE(read_file(path("run/earlier-1/config.toml")).find("seed = 1"), std::string::npos);
  EXPECT_NE(read_file(path("run/weights.safetensors")), weights);
  succeed({"train", "config.toml", "--set", "train.seed=3"});
  EXPECT_TRUE(fs::exists(path("run/earlier-2/events.jsonl")));
  EXPECT_EQ(read_file(path("run/earlier-1/events.jsonl")), events);
}

// Its checkpoints are with it, wherever checkpoint.dir is and whatever a checkpoint is.
TEST_F(Isolation, WhatAFreshStartSetAsideCanBeResumed) {
  const auto weights = [&](const std::string& directory) {
    return read_file(path(directory + "/weights.safetensors"));
  };
  const auto train_in = [&](const std::string& directory, const Words& settings,
                            const Words& more) {
    Words words{"train", "config.toml", "--set", "log.dir=" + directory};
    words.insert(words.end(), settings.begin(), settings.end());
    words.insert(words.end(), more.begin(), more.end());
    return succeed(words);
  };
  train_in("whole", {}, {});
  const std::map<std::string, Words> kinds{
      {"files", {}},
      {"elsewhere", {"checkpoint.dir=saved"}},
      {"durable", {"checkpoint.mode=durable", "memory.place.optimizer=storage"}}};
  for (const auto& [name, settings] : kinds) {
    SCOPED_TRACE(name);
    train_in(name, settings, {"--steps", "1"});
    write_file(path(name + "/report.html"), "of the first");
    train_in(name, settings, {"train.seed=2"});
    EXPECT_NE(weights(name), weights("whole"));
    EXPECT_FALSE(fs::exists(path(name + "/report.html")));
    EXPECT_EQ(read_file(path(name + "/earlier-1/report.html")), "of the first");
    for (const char* aside : {"/earlier-1", "/earlier-1/"}) {
      train_in(name, settings, {"--resume", name + aside});
      EXPECT_EQ(weights(name + "/earlier-1"), weights("whole"));
    }
    EXPECT_FALSE(fs::exists(path(name + "/earlier-2")));
  }
  EXPECT_TRUE(fs::is_symlink(path("elsewhere/earlier-1/checkpoints")));
}

// Where they lie, and of which run they are, stands in the lock of the last run that was killed.
TEST_F(Isolation, StateWhoseLogWasDeletedWithWhatWasSetAsideIsFound) {
  const std::string first = kill_a_durable_run("run/checkpoints");
  const std::string second = kill_a_durable_run("run/checkpoints");
  EXPECT_TRUE(fs::exists(path("run/earlier-1/checkpoints/state-" + first + ".log")));
  EXPECT_TRUE(state_listed(first).empty());
  EXPECT_TRUE(state_listed(second).empty());
  fs::remove_all(path("run/earlier-1"));
  ASSERT_EQ(state_listed(first).size(), 1u);
  EXPECT_EQ(state_listed(first)[0].at("removable"), false);
  // The log may have been moved: that is not told apart. What tells of the state stays with it.
  const std::string lock = read_file(path("run/lock"));
  const ChildOutcome listing = succeed({"doctor", "--clean", "run"});
  EXPECT_NE(listing.out.find("0 B in all; --yes removes it"), std::string::npos) << listing.out;
  EXPECT_NE(listing.out.find(" MiB more is only listed"), std::string::npos) << listing.out;
  for (int i = 0; i < 2; ++i) {
    const ChildOutcome cleaned = succeed({"doctor", "--clean", "run", "--yes"});
    EXPECT_NE(cleaned.out.find(" MiB is only listed"), std::string::npos) << cleaned.out;
    EXPECT_EQ(read_file(path("run/lock")), lock);
    EXPECT_EQ(state_listed(first).size(), 1u);
  }
  EXPECT_TRUE(fs::exists(path("shared/sluice-" + first + "-0.durable")));
  EXPECT_TRUE(fs::exists(path("shared/sluice-" + second + "-0.durable")));
  fs::remove(path("shared/sluice-" + first + "-0.durable"));
  succeed({"doctor", "--clean", "run", "--yes"});
  EXPECT_FALSE(fs::exists(path("run/lock")));
}

TEST_F(Isolation, StateWhoseLogLiesInAnEarlierCheckpointDirIsNoLeftover) {
  const std::string first = kill_a_durable_run("first");
  const std::string second = kill_a_durable_run("second");
  EXPECT_TRUE(state_listed(first).empty());
  EXPECT_TRUE(state_listed(second).empty());
  // Nor where somebody put it back to where it was.
  const std::string log = "state-" + first + ".log";
  fs::rename(path("first/earlier-1/" + log), path("first/" + log));
  EXPECT_TRUE(state_listed(first).empty());
  fs::remove(path("first/" + log));
  EXPECT_EQ(state_listed(first).size(), 1u);
}

TEST_F(Isolation, WhatAKilledResumeOfASetAsideRunLeftIsFound) {
  succeed({"train", "config.toml", "--steps", "2"});
  succeed({"train", "config.toml", "--steps", "1"});
  kill_after("step",
             {"train", "config.toml", "--json", "--set", kLatency, "--resume", "run/earlier-1"});
  write_file(path("run/earlier-1/weights.safetensors.tmp"), "half");
  fs::create_directories(path("run/earlier-1/checkpoints/step-00000009.tmp"));
  for (const char* directory : {"run", "."}) {
    const auto listed = events_of(succeed({"doctor", "--clean", directory, "--json"}), "leftover");
    EXPECT_EQ(listed.size(), 4u) << directory;
  }
  succeed({"doctor", "--clean", "run", "--yes"});
  EXPECT_FALSE(fs::exists(path("run/earlier-1/lock")));
  EXPECT_FALSE(fs::exists(path("run/earlier-1/checkpoints/step-00000009.tmp")));
  EXPECT_TRUE(fs::exists(path("run/earlier-1/checkpoints/step-00000002")));
}

// More run ids than a lock keeps can stand there only where somebody wrote them.
TEST_F(Isolation, ALockKeepsItsBoundWhateverStoodInIt) {
  fs::create_directories(path("run"));
  const std::string id(32, '7');
  write_file(path("run/lock"), Json{{"pid", 1 << 30},
                                    {"host", "elsewhere"},
                                    {"run_id", id},
                                    {"started", ""},
                                    {"storage_paths", Json::array()},
                                    {"earlier_runs", std::vector<std::string>(300, id)}}
                                   .dump());
  const auto child = begin();
  EXPECT_EQ(Json::parse(read_file(path("run/lock"))).at("earlier_runs").size(), 256u);
  child->send(SIGTERM);
  EXPECT_EQ(child->wait(kCliDeadline).exit_status, 143);
}

TEST_F(Isolation, CleaningWhatIsNoDirectoryIsRefused) {
  expect_refused({"doctor", "--clean", "nowhere"}, {"--clean", "'nowhere' is no directory"});
  expect_refused({"doctor", "--yes"}, {"--yes"});
}

// A file called lock makes no run, and what others write there is theirs.
TEST_F(Isolation, CleaningLeavesAloneWhatNoRunHasMade) {
  fs::create_directories(path("foreign/checkpoints/step-00000001.tmp"));
  write_file(path("foreign/lock"), "somebody's");
  write_file(path("foreign/notes.tmp"), "theirs");
  fs::create_directories(path("odd/lock"));
  succeed({"doctor", "--clean", ".", "--yes"});
  for (const char* kept :
       {"foreign/lock", "foreign/notes.tmp", "foreign/checkpoints/step-00000001.tmp", "odd/lock"}) {
    EXPECT_TRUE(fs::exists(path(kept))) << kept;
  }
}

}  // namespace
}  // namespace sluice::testing
