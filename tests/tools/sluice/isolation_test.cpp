// Runs apart from each other: the modes of their files, the locks of their directories, and the
// stale files of runs that were killed.
#include <fcntl.h>
#include <sys/stat.h>

#include <array>

#include "tests/tools/sluice/concurrent_starts.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

TEST_F(ConcurrentStarts, NeverMeet) {
  start_together(10);
}

const std::string kDeadRun(32, '7');

class Isolation : public CliTest {
 protected:
  // A run that is killed after its first step, or another event.
  void kill_a_run(const Words& settings, const std::string& event = "step") const {
    kill_after(event, train_words(Words{kSlowLink} + settings));
  }
  // The lock of a process that has ended.
  void write_lock(const std::string& run, const std::vector<std::string>& earlier_runs = {}) const {
    write_file(path(run + "/lock"), Json{{"pid", 1 << 30},
                                         {"host", "elsewhere"},
                                         {"run_id", kDeadRun},
                                         {"started", ""},
                                         {"storage_paths", Json::array()},
                                         {"earlier_runs", earlier_runs}}
                                        .dump());
  }
  Json lock_of_run() const { return Json::parse(read_file(path("run/latest/lock"))); }
  std::vector<Json> stale_files(const Words& where = {"run"}) const {
    return events_of(succeed(Words{"doctor", "--json", "--clean"} + where), "stale");
  }
  // What `doctor --clean run --yes` tells people.
  std::string clean(const std::string& where = "run") const {
    return succeed({"doctor", "--clean", where, "--yes"}).out;
  }
  // Writes the files that a run leaves if it is killed while it saves, or between making a storage
  // file and unlinking it.
  void leave_files() {
    const std::string id = lock_of_run().at("run_id");
    fs::create_directories(path("run/0001/checkpoints/step-00000009.tmp"));
    write_file(path("run/0001/checkpoints/step-00000009.tmp/state.safetensors"), "half");
    write_file(path("run/0001/weights.safetensors.tmp"), "half");
    write_file(path("run/0001/storage/sluice-" + id + "-0.state"), "scratch");
    write_file(path("run/0001/storage/notes.state"), "not a run's");
  }
};

TEST_F(Isolation, FilesAreTheirOwnersAlone) {
  // Whatever the caller's mask would let through.
  const mode_t before = ::umask(0);
  succeed(train_words({"checkpoint.every=3", "memory.storage_paths=[\"deep/er/storage\"]"}));
  succeed({"report", "run"});
  succeed({"report", "run", "--format", "perfetto"});
  ::umask(before);
  EXPECT_TRUE(fs::exists(path("run/0001/trace.perfetto.json")));
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

// Another start has another directory; a resume is refused, and so is a cleaner.
TEST_F(Isolation, ALiveRunKeepsItsDirectoryAndItsFiles) {
  const auto child = begin_run();
  const Json lock = lock_of_run();
  leave_files();
  EXPECT_TRUE(holds(clean("."), "in use by process"));
  EXPECT_TRUE(fs::exists(path("run/0001/weights.safetensors.tmp")));
  EXPECT_TRUE(fs::exists(path("run/0001/checkpoints/step-00000009.tmp")));
  const ChildOutcome refused = run({"train", "run"});
  EXPECT_EQ(refused.exit_status, 2);
  for (const std::string& word :
       {std::string("log.dir: 'run/0001' is in use by another run"),
        "process " + std::to_string(lock.at("pid").get<int>()),
        "host " + lock.at("host").get<std::string>(), lock.at("run_id").get<std::string>(),
        "since " + lock.at("started").get<std::string>()}) {
    EXPECT_TRUE(holds(refused.err, word));
  }
  succeed({"train", "config.toml", "--steps", "1"});
  EXPECT_EQ(fs::read_symlink(path("run/latest")), "0002");
  end_run(*child);
  EXPECT_FALSE(fs::exists(path("run/0001/lock")));
}

TEST_F(Isolation, StaleFilesOfAKilledRunAreListedAndRemoved) {
  fs::create_directories(path("runs"));
  kill_a_run({"log.dir=runs/demo"});
  fs::create_directory_symlink("runs/demo", path("run"));
  leave_files();
  const auto before = snapshot();
  const std::vector<Json> listed = stale_files({});  // ./runs
  EXPECT_EQ(listed.size(), 4u);                      // a lock, a storage file, a checkpoint, a file
  for (const Json& event : listed) EXPECT_EQ(event.at("removed"), false);
  EXPECT_EQ(snapshot(), before);  // looking changes nothing

  EXPECT_TRUE(holds(succeed({"doctor", "--clean", "--yes"}).out, "step-00000009.tmp"));
  auto expected = before;
  for (const Json& event : listed) {
    const std::string left = event.at("path");
    std::erase_if(expected, [&](const auto& entry) {
      return entry.first == left || entry.first.starts_with(left + "/");
    });
  }
  EXPECT_EQ(snapshot(), expected);
  EXPECT_TRUE(fs::exists(path("run/0001/storage/notes.state")));
  EXPECT_TRUE(stale_files({}).empty());
  EXPECT_TRUE(stale_files({"."}).empty());
}

TEST_F(Isolation, CleaningASharedPathRemovesOnlyTheDeadRunsFiles) {
  kill_a_run({"memory.storage_paths=[\"shared\"]"});
  const std::string id = lock_of_run().at("run_id");
  const std::string own = "shared/sluice-" + id + "-0.state";
  const std::string other = "shared/sluice-" + std::string(32, '7') + "-0.state";
  write_file(path(own), "dead");
  write_file(path(other), "another run's");
  clean();
  EXPECT_FALSE(fs::exists(path(own)));
  EXPECT_TRUE(fs::exists(path(other)));
}

// A durable run was killed before its first commit; its lock tells the place of its files.
TEST_F(Isolation, FilesOfARunThatCommittedNothingAreFoundWhateverPathsAreConfiguredNow) {
  kill_a_run({"checkpoint.mode=durable", "checkpoint.every=0", "memory.place.optimizer=storage",
              "memory.storage_paths=[\"first\"]"});
  EXPECT_FALSE(fs::is_empty(path("first")));
  std::string config = read_file(path("run/0001/config.toml"));
  const auto at = config.find(path("first").string() + "\"");
  ASSERT_NE(at, std::string::npos);
  write_file(path("run/0001/config.toml"), config.insert(at, "/other"));
  clean();
  EXPECT_TRUE(fs::is_empty(path("first")));
}

// The lock of the last process holds the killed processes and the place of their state.
TEST_F(Isolation, StateWithADeletedLogIsFoundAndOnlyListed) {
  const Words durable{"checkpoint.mode=durable", "checkpoint.every=1",
                      "memory.place.optimizer=storage", "memory.storage_paths=[\"shared\"]"};
  kill_a_run(durable, "checkpoint");
  const std::string id = lock_of_run().at("run_id");
  const fs::path data = path("shared/sluice-" + id + "-0.durable");
  const auto state_listed = [&] {
    std::vector<Json> listed = stale_files();
    std::erase_if(listed, [&](const Json& event) {
      return event.at("path").get<std::string>().find("sluice-" + id) == std::string::npos;
    });
    return listed;
  };
  EXPECT_TRUE(state_listed().empty());
  const fs::path log = path("run/0001/checkpoints/state-" + id + ".log");
  fs::rename(log, path("moved.log"));
  ASSERT_EQ(state_listed().size(), 1u);
  EXPECT_EQ(state_listed()[0].at("removable"), false);
  // A moved log looks like a deleted one. The lock stays with the state, for it alone names
  // the state.
  const std::string lock = read_file(path("run/0001/lock"));
  EXPECT_TRUE(
      holds(succeed({"doctor", "--clean", "run"}).out, " MiB is only listed; --yes leaves it"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(holds(clean(), " MiB is only listed"));
    EXPECT_EQ(read_file(path("run/0001/lock")), lock);
  }
  EXPECT_TRUE(fs::exists(data));
  fs::rename(path("moved.log"), log);
  EXPECT_TRUE(state_listed().empty());
  clean();
  EXPECT_FALSE(fs::exists(path("run/0001/lock")));
  succeed({"train", "run", "--steps", "3"});
}

// Each has a log of its own, wherever that lies, and data of its own in the path that both use.
TEST_F(Isolation, DurableRunsShareAStoragePathAndACleanerLeavesTheStateOfBoth) {
  const Words durable{"checkpoint.mode=durable", "memory.place.optimizer=storage",
                      "memory.storage_paths=[\"shared\"]"};
  const Words two_steps{"--steps", "2"};
  succeed(train_words(durable) + two_steps);
  succeed(train_words(durable + Words{"checkpoint.dir=saved"}) + two_steps);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("shared")), {}), 2);
  const auto before = snapshot();
  clean();
  EXPECT_EQ(snapshot(), before);
  for (const char* run : {"run/0001", "run/0002"}) {
    const ChildOutcome outcome = succeed({"train", run, "--json", "--steps", "3"});
    EXPECT_EQ(events_of(outcome, "resume").at(0).at("step"), 2);
  }
}

// The start was killed while it replaced a link or an export. A link of the name elsewhere is not
// followed.
TEST_F(Isolation, RemainsOfALinkAndOfAnExportAreRemoved) {
  succeed({"train", "config.toml", "--steps", "1"});
  fs::create_directories(path("models"));
  write_file(path("models/model.safetensors.tmp"), "another program's");
  fs::create_directories(path("run/0041"));
  fs::create_directory_symlink(path("models"), path("run/0041/huggingface"));
  write_lock("run/0041");
  write_file(path("run/0001/huggingface/model.safetensors.tmp"), "half");
  const fs::path link = path("run/latest." + kDeadRun + ".tmp");
  fs::create_symlink("0001", link);
  const std::array<timespec, 2> long_ago{};
  ASSERT_EQ(::utimensat(AT_FDCWD, link.c_str(), long_ago.data(), AT_SYMLINK_NOFOLLOW), 0);
  clean();
  EXPECT_TRUE(fs::exists(path("models/model.safetensors.tmp")));
  EXPECT_FALSE(fs::exists(path("run/0001/huggingface/model.safetensors.tmp")));
  EXPECT_FALSE(fs::is_symlink(link));
}

// A path that cannot be listed may hold state: the run is left alone, and the message says why.
TEST_F(Isolation, ARunWithAStoragePathThatCannotBeListedIsLeftAlone) {
  kill_a_run({"memory.storage_paths=[\"shared\"]"});
  fs::remove_all(path("shared"));
  fs::create_symlink("shared", path("shared"));  // leads nowhere else
  EXPECT_TRUE(holds(clean(), "run/0001: left alone: "));
  EXPECT_TRUE(fs::exists(path("run/0001/lock")));
}

// A lock holds more run ids than its bound only if a user wrote them.
TEST_F(Isolation, ALockKeepsItsBoundWhateverStoodInIt) {
  succeed({"train", "config.toml", "--steps", "1"});
  write_lock("run/0001", std::vector<std::string>(300, kDeadRun));
  const auto child = start({"train", "run", "--json", "--set", kSlowLink, "train.steps=1000"});
  child->wait_for_output(R"("event":"step")", kCliDeadline);
  EXPECT_EQ(lock_of_run().at("earlier_runs").size(), 256u);
  end_run(*child);
}

// A file called lock makes no run; files of others next to it stay.
TEST_F(Isolation, CleaningLeavesForeignFilesAlone) {
  fs::create_directories(path("foreign/checkpoints/step-00000001.tmp"));
  write_file(path("foreign/lock"), "somebody's");
  write_file(path("foreign/notes.tmp"), "theirs");
  fs::create_directories(path("odd/lock"));
  clean(".");
  for (const char* kept :
       {"foreign/lock", "foreign/notes.tmp", "foreign/checkpoints/step-00000001.tmp", "odd/lock"}) {
    EXPECT_TRUE(fs::exists(path(kept))) << kept;
  }
  expect_refused({"doctor", "--clean", "nowhere"}, {"--clean", "'nowhere' is not a directory"});
  expect_refused({"doctor", "--yes"}, {"--yes"});
}

}  // namespace
}  // namespace sluice::testing
