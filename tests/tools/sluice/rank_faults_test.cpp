// Ranks that are killed, stopped or cut off at random moments: every survivor ends within ten
// seconds with status 3 and names the rank and the operation that it did not reach, and a resume
// ends with the bits of a run that was left alone. SLUICE_RANK_FAULTS: how many (tools/test --ranks
// N).
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <thread>

#include "base/file_descriptor.hpp"
#include "base/rng.hpp"
#include "tests/tools/sluice/rank_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::seconds;

enum class Fault : std::uint8_t { kKill, kStop, kCut };
constexpr std::array kFaultNames{"killed", "stopped", "cut off"};

// The sockets of a process, by number in its table.
std::vector<int> sockets_of(pid_t process) {
  std::vector<int> sockets;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", error)) {
    const fs::path target = fs::read_symlink(entry.path(), error);
    if (target.string().starts_with("socket:")) {
      sockets.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  std::sort(sockets.begin(), sockets.end());
  return sockets;
}

// Copies of a process's connections.
std::vector<std::unique_ptr<FileDescriptor>> connections_of(pid_t process) {
  const FileDescriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  std::vector<std::unique_ptr<FileDescriptor>> connections;
  for (const int number : sockets_of(process)) {
    auto socket = std::make_unique<FileDescriptor>(
        static_cast<int>(::syscall(SYS_pidfd_getfd, handle.get(), number, 0)));
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    const bool connected =
        socket->get() >= 0 &&
        ::getpeername(socket->get(), reinterpret_cast<sockaddr*>(&peer), &bytes) == 0;
    if (connected) connections.push_back(std::move(socket));
  }
  return connections;
}

// Shuts a connection of a process down, as if a switch had lost it. Returns false if it has none.
bool cut_connection(pid_t process, std::uint64_t draw) {
  const auto connections = connections_of(process);
  if (connections.empty()) return false;
  return ::shutdown(connections[draw % connections.size()]->get(), SHUT_RDWR) == 0;
}

// All of them. One alone may be of a group that has no more to say.
bool cut_connections(pid_t process) {
  bool cut = false;
  for (const auto& socket : connections_of(process)) {
    cut |= ::shutdown(socket->get(), SHUT_RDWR) == 0;
  }
  return cut;
}

// A search for a plan takes longer than six steps. Random trials still search, because a rank may
// also die during the search.
const Words kPlanned{"recompute.policy=none", "memory.place.activation=device",
                     "memory.place.weight=device", "memory.place.gradient=device"};

class RankFaults : public RankTest {
 protected:
  struct Trial {
    int ranks = 2;
    bool durable = false;
    bool has_stages = false;
    bool has_groups = false;
    Words mesh = {};              // more settings, such as a mesh that has neither
    bool early = false;           // as soon as the ranks have met: they plan, and connect
    std::int64_t after_step = 0;  // not 0: as soon as rank 0 has made this many steps
    Fault fault = Fault::kKill;
    bool cuts_all = false;
    std::size_t victim = 0;
    microseconds delay{};
    std::uint64_t draw = 0;
  };

  // has_stages: pipelines of two ranks. has_groups: tensor groups of two ranks.
  static Words settings(int ranks, bool durable = false, bool has_stages = false,
                        bool has_groups = false) {
    const int stages = has_stages ? 2 : 1, tensor = has_groups ? 2 : 1;
    return rank_settings(
        ranks / stages / tensor, 3,
        {"parallel.pipeline=" + std::to_string(stages), "parallel.tensor=" + std::to_string(tensor),
         "train.steps=16", "checkpoint.every=2", "memory.link_latency=1ms",
         "memory.place.optimizer=storage", "train.eval_every=4",
         std::string("checkpoint.mode=") + (durable ? "durable" : "scratch")});
  }

  static Words settings(const Trial& trial) {
    return settings(trial.ranks, trial.durable, trial.has_stages, trial.has_groups) + trial.mesh;
  }

  // Returns false if the job had ended before the fault could hit it.
  bool hit(const Trial& trial, const Words& words) const {
    const auto job = start_ranks(trial.ranks, words);
    if (trial.early) {
      wait_for_meeting(*job);
    } else if (trial.after_step > 0) {
      job->rank(0).wait_for_output(
          R"("event":"step","step":)" + std::to_string(trial.after_step) + ",", kCliDeadline);
    } else {
      job->rank(0).wait_for_output(R"("event":"plan")", kCliDeadline);
    }
    std::this_thread::sleep_for(trial.delay);
    ChildProcess& victim = job->rank(trial.victim);
    bool struck = true;
    if (trial.fault == Fault::kCut) {
      struck =
          trial.cuts_all ? cut_connections(victim.pid()) : cut_connection(victim.pid(), trial.draw);
    } else {
      victim.send(trial.fault == Fault::kKill ? SIGKILL : SIGSTOP);
    }
    const auto begin = Clock::now();
    bool failed = false;
    for (std::size_t rank = 0; rank < job->size(); ++rank) {
      if (rank == trial.victim && trial.fault != Fault::kCut) continue;
      const ChildOutcome outcome = job->rank(rank).wait(kCliDeadline);
      if (outcome.exit_status == 0) {
        EXPECT_TRUE(holds(outcome.out, R"("event":"done")") || rank > 0) << outcome.out;
        continue;
      }
      failed = true;
      expect_names(trial, rank, outcome);
      EXPECT_LT(Clock::now() - begin, seconds(10));
    }
    if (trial.fault == Fault::kStop) victim.send(SIGKILL);
    return struck && failed;
  }

  static void expect_names(const Trial& trial, std::size_t rank, const ChildOutcome& outcome) {
    EXPECT_EQ(outcome.exit_status, 3) << outcome.err;
    static const std::regex operation(
        "(waited for it in|Gather|AllToAll|AllReduce|joining of parts|Send|Recv|exchange "
        "of|gathering of|connect)");
    static const std::regex any_rank("rank [0-9] of [0-9]");
    EXPECT_TRUE(std::regex_search(outcome.err, operation)) << "rank " << rank << outcome.err;
    const std::string name = "rank " + std::to_string(trial.victim) + " of ";
    EXPECT_TRUE(trial.fault == Fault::kCut ? std::regex_search(outcome.err, any_rank)
                                           : outcome.err.find(name) != std::string::npos)
        << "rank " << rank << ": " << outcome.err;
  }

  // Whether the run reported a checkpoint or a commit.
  bool has_saved(const Trial& trial, const std::string& run) const {
    const fs::path events = path(run + "/0001/events.jsonl");
    if (!fs::exists(events)) return false;
    return holds(read_file(events),
                 trial.durable ? R"("commits":true)" : R"("event":"checkpoint")");
  }

  // Until each rank has a connection: rank 0 has met all others then, or is about to.
  static void wait_for_meeting(JobProcesses& job) {
    const auto deadline = Clock::now() + seconds(60);
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      while (connections_of(job.rank(rank).pid()).empty() && Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  // Goes on after a fault, from the last checkpoint or from the start.
  std::string finish(const Trial& trial, const std::string& run) const {
    const int ranks = trial.ranks;
    const Words words = train_words(settings(trial) + Words{"log.dir=" + run});
    const bool begun = fs::exists(path(run + "/0001/checkpoints")) &&
                       !fs::is_empty(path(run + "/0001/checkpoints"));
    const bool saved = has_saved(trial, run);
    EXPECT_TRUE(begun || !saved);
    ChildOutcome outcome = run_launched(ranks, begun ? words + Words{"--resume", run} : words);
    // Killed within its first save.
    if (begun && !saved && outcome.exit_status == 2) outcome = run_launched(ranks, words);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    return hash_of(outcome);
  }
};

TEST_F(RankFaults, EverySurvivorNamesTheRankAndAResumeHasTheSameBits) {
  const char* const asked = std::getenv("SLUICE_RANK_FAULTS");
  const std::uint64_t faults = asked == nullptr ? 12 : std::strtoull(asked, nullptr, 10);
  std::map<int, microseconds> usual;
  std::string whole;
  for (const int ranks : {2, 4}) {
    const auto job = start_ranks(ranks, train_words(settings(ranks) + Words{"log.dir=whole"}));
    job->rank(0).wait_for_output(R"("event":"plan")", kCliDeadline);
    const auto begin = Clock::now();
    const std::vector<ChildOutcome> outcomes = job->wait(kCliDeadline);
    usual[ranks] = std::chrono::duration_cast<microseconds>(Clock::now() - begin);
    ASSERT_EQ(outcomes[0].exit_status, 0) << outcomes[0].err;
    EXPECT_TRUE(whole.empty() || hash_of(outcomes[0]) == whole);
    whole = hash_of(outcomes[0]);
  }
  // Tensor groups have bits of their own.
  const std::string of_groups = hash_of(
      run_launched(4, train_words(settings(4, false, false, true) + Words{"log.dir=groups"})));
  const CounterRng random(25, stream_of("test/rank_faults"));
  std::uint64_t draw = 0;
  for (std::uint64_t struck = 0; struck < faults;) {
    Trial trial;
    trial.ranks = random.below(draw++, 3) == 0 ? 4 : 2;
    trial.fault = static_cast<Fault>(struck % kFaultNames.size());
    trial.victim = random.below(draw++, static_cast<std::uint64_t>(trial.ranks));
    trial.early = random.below(draw++, 4) == 0;
    constexpr std::uint64_t kMostEarly = 300'000;  // us
    trial.delay = microseconds(random.below(
        draw++, trial.early ? kMostEarly : static_cast<std::uint64_t>(usual[trial.ranks].count())));
    trial.draw = random.below(draw++, 1000);
    trial.durable = random.below(draw++, 2) == 1;
    trial.has_stages = random.below(draw++, 2) == 1;
    trial.has_groups = trial.ranks == 4 && !trial.has_stages;
    SCOPED_TRACE("rank " + std::to_string(trial.victim) + " of " + std::to_string(trial.ranks) +
                 " " + kFaultNames[static_cast<std::size_t>(trial.fault)] + " after " +
                 std::to_string(trial.delay.count()) + " us" + (trial.early ? ", early" : "") +
                 (trial.durable ? ", durable" : "") + (trial.has_stages ? ", stages" : "") +
                 (trial.has_groups ? ", groups" : ""));
    const std::string run = "run" + std::to_string(draw);
    const Words words = settings(trial);
    if (!hit(trial, train_words(words + Words{"log.dir=" + run}))) continue;
    ++struck;
    EXPECT_EQ(finish(trial, run), trial.has_groups ? of_groups : whole);
    fs::remove_all(path(run));
    if (HasFailure()) return;
  }
}

// Two groups of two ranks. Each is struck after step 3, when the state of step 2 is saved.
TEST_F(RankFaults, GroupsInEachDirectionEndAndResumeToTheirBits) {
  const Words shorter = kPlanned + Words{"train.steps=6", "train.eval_every=0"};
  const auto contexts = [](const char* attention) {
    return Words{"parallel.data=2", "parallel.context=2", "train.micro_batch=1",
                 std::string("parallel.context_attention=") + attention};
  };
  std::vector<Trial> trials;
  for (const bool durable : {false, true}) {
    for (const Fault fault : {Fault::kKill, Fault::kStop, Fault::kCut}) {
      trials.push_back({.ranks = 4, .durable = durable, .has_groups = true, .fault = fault});
    }
  }
  trials.push_back({.ranks = 4, .durable = true, .mesh = contexts("all-to-all")});
  trials.push_back({.ranks = 4, .mesh = contexts("ring")});
  std::map<Words, std::string> whole;  // by mesh
  for (std::size_t i = 0; i < trials.size(); ++i) {
    Trial& trial = trials[i];
    trial.victim = i % 4;
    trial.after_step = 3;
    trial.cuts_all = true;
    std::string& hash = whole[trial.mesh];
    trial.mesh = trial.mesh + shorter;
    const std::string run = "run" + std::to_string(i);
    SCOPED_TRACE(std::string(kFaultNames[static_cast<std::size_t>(trial.fault)]) + ", " +
                 ::testing::PrintToString(settings(trial)));
    if (hash.empty()) {
      Trial alone = trial;
      alone.durable = false;
      hash = hash_of(run_launched(4, train_words(settings(alone) + Words{"log.dir=whole" + run})));
      ASSERT_FALSE(hash.empty());
    }
    ASSERT_TRUE(hit(trial, train_words(settings(trial) + Words{"log.dir=" + run})));
    EXPECT_TRUE(has_saved(trial, run));
    EXPECT_EQ(finish(trial, run), hash);
    fs::remove_all(path(run));
    if (HasFailure()) return;
  }
}

// Two data-parallel ranks of two stages of two parts each.
TEST_F(RankFaults, EightRanksInThreeDimensionsEndAndResumeAsTwoDo) {
  const Words shorter = kPlanned + Words{"train.steps=6"};
  const Words two = settings(4, false, false, true) + shorter + Words{"log.dir=groups"};
  const std::string whole = hash_of(run_launched(4, train_words(two)));
  for (const Fault fault : {Fault::kKill, Fault::kStop, Fault::kCut}) {
    Trial trial;
    trial.ranks = 8;
    trial.has_stages = trial.has_groups = true;
    trial.mesh = shorter;
    trial.fault = fault;
    trial.victim = fault == Fault::kKill ? 7 : 2;
    trial.after_step = 3;
    trial.cuts_all = true;
    SCOPED_TRACE(kFaultNames[static_cast<std::size_t>(fault)]);
    const std::string run = "run" + std::to_string(trial.victim);
    ASSERT_TRUE(hit(trial, train_words(settings(trial) + Words{"log.dir=" + run})));
    EXPECT_EQ(finish(trial, run), whole);
    fs::remove_all(path(run));
  }
}

// The launcher starts the job again, from its last checkpoint.
TEST_F(RankFaults, TheLauncherRestartsFromTheLastCheckpoint) {
  const std::string whole =
      hash_of(run_launched(2, train_words(settings(2) + Words{"log.dir=whole"})));
  const auto child = start(launch_words(2, train_words(settings(2)), {"--restarts", "1"}));
  child->wait_for_output(R"("event":"checkpoint","step":4)", kCliDeadline);
  const std::string plan = read_file(path("run/0001/events.jsonl"));
  const Json event = Json::parse(plan.substr(0, plan.find('\n')));
  ::kill(event.at("places").at(1).at("process").get<pid_t>(), SIGKILL);
  const ChildOutcome outcome = child->wait(kCliDeadline);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_TRUE(holds(outcome.err, "launch   restart 1 of 1"));
  EXPECT_EQ(events_of(outcome, "resume").size(), 1u);
  EXPECT_EQ(hash_of(outcome), whole);
}

pid_t process_of(const fs::path& run, std::size_t rank) {
  const std::string events = read_file(run / "events.jsonl");
  const Json event = Json::parse(events.substr(0, events.find('\n')));
  return event.at("places").at(rank).at("process").get<pid_t>();
}

// A finished run next to it is another job's.
TEST_F(RankFaults, TheLauncherRestartsItsOwnRunAndNoOther) {
  const Words job = settings(2) + Words{"checkpoint.every=0"};
  const std::string whole = hash_of(run_launched(2, train_words(job)));
  const auto child = start(launch_words(2, train_words(job), {"--restarts", "1"}));
  child->wait_for_output(R"("event":"step","step":1,)", kCliDeadline);
  ::kill(process_of(path("run/0002"), 1), SIGKILL);
  const ChildOutcome outcome = child->wait(kCliDeadline);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_TRUE(holds(outcome.err, "launch   restart 1 of 1"));
  EXPECT_EQ(events_of(outcome, "resume").size(), 0u);
  EXPECT_EQ(events_of(outcome, "plan").size(), 2u);
  EXPECT_EQ(hash_of(outcome), whole);
}

// Rank 1 had no commit of its own yet: the commit before, which all ranks have, is taken.
TEST_F(RankFaults, AFirstCommitOfSomeRanksIsNoCommit) {
  const Words job = train_words(settings(2, /*durable=*/true) + Words{"checkpoint.every=0"});
  const std::string whole = hash_of(run_launched(2, job + Words{"--set", "log.dir=whole"}));
  ASSERT_EQ(run_launched(2, job + Words{"--steps", "2"}).exit_status, 0);
  fs::copy(path("run/0001"), path("earlier"), fs::copy_options::recursive);
  ASSERT_EQ(run_launched(2, job + Words{"--resume", "run", "--steps", "4"}).exit_status, 0);
  const auto logs_in = [&](const std::string& directory) {
    std::vector<fs::path> logs;
    for (const auto& entry : fs::directory_iterator(path(directory))) {
      if (entry.path().extension() == ".log") logs.push_back(entry.path());
    }
    return logs;
  };
  const std::string ranks_logs = "run/0001/checkpoints/rank-1";
  const std::vector<fs::path> later = logs_in(ranks_logs);
  ASSERT_EQ(later.size(), 1u);
  fs::remove(later[0]);
  fs::copy(path("earlier"), path("run/0001"),
           fs::copy_options::recursive | fs::copy_options::skip_existing);
  ASSERT_EQ(logs_in(ranks_logs).size(), 1u);
  ASSERT_EQ(logs_in("run/0001/checkpoints").size(), 2u);
  const ChildOutcome outcome = run_launched(2, job + Words{"--resume", "run"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(events_of(outcome, "resume").at(0).at("step"), 2);
  EXPECT_EQ(hash_of(outcome), whole);
}

// Damages the newest record of a log (offload/state_log.hpp), as a rank leaves it that is killed
// while it writes its commit. Returns the number of the record.
std::uint64_t damage_newest_record(const fs::path& log) {
  std::string bytes = read_file(log);
  constexpr std::size_t kHeaderBytes = 8192;
  const std::size_t area_bytes = (bytes.size() - kHeaderBytes) / 2;
  std::array<std::uint64_t, 2> numbers{};
  for (std::size_t area = 0; area < 2; ++area) {
    std::memcpy(&numbers[area], bytes.data() + kHeaderBytes + area * area_bytes + 8, 8);
  }
  const std::size_t newest = numbers[1] > numbers[0] ? 1 : 0;
  constexpr std::size_t kInText = 100;
  bytes[kHeaderBytes + newest * area_bytes + kInText] ^= 1;
  write_file(log, bytes);
  return numbers[newest];
}

// Rank 0 has the commit of step 6, and rank 1 only that of step 4, which is still whole on both.
TEST_F(RankFaults, ALaterCommitOfSomeRanksIsNoCommit) {
  const Words job = train_words(settings(2, /*durable=*/true));
  const std::string whole = hash_of(run_launched(2, job + Words{"--set", "log.dir=whole"}));
  ASSERT_EQ(run_launched(2, job + Words{"--steps", "6"}).exit_status, 0);
  fs::path log;
  for (const auto& entry : fs::directory_iterator(path("run/0001/checkpoints/rank-1"))) {
    if (entry.path().extension() == ".log") log = entry.path();
  }
  EXPECT_EQ(damage_newest_record(log), 3u);
  const ChildOutcome outcome = run_launched(2, job + Words{"--resume", "run"});
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(events_of(outcome, "resume").at(0).at("step"), 4);
  EXPECT_EQ(hash_of(outcome), whole);
}

// No step follows the last event that tells of a fault.
TEST_F(RankFaults, ADiskThatIsFullAtTheEndFailsAllRanks) {
  const Words job =
      rank_settings(2, 3, {kSlowLink, "train.steps=16", "memory.place.optimizer=pinned"});
  ASSERT_EQ(run_launched(2, train_words(job + Words{"log.dir=whole"})).exit_status, 0);
  const std::string events = read_file(path("whole/0001/rank-1/events.jsonl"));
  const std::size_t last_line = events.rfind('\n', events.size() - 2) + 1;
  ASSERT_TRUE(holds(events.substr(last_line), R"("event":"done")"));
  const auto ranks = start_ranks(2, train_words(job));
  // The trace of step 3, a larger file, is written by then; the other steps take seconds.
  ranks->rank(0).wait_for_output(R"("event":"step","step":4,)", kCliDeadline);
  const rlim_t most = (last_line + events.size()) / 2;
  const rlimit limit{most, most};
  ASSERT_EQ(::prlimit(ranks->rank(1).pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  int told = 0;
  for (const ChildOutcome& outcome : ranks->wait(kCliDeadline)) {
    EXPECT_EQ(outcome.exit_status, 3) << outcome.err;
    told += holds(outcome.err, "events.jsonl' cannot be written") ? 1 : 0;
  }
  EXPECT_GE(told, 1);
}

}  // namespace
}  // namespace sluice::testing
