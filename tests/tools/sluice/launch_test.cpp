// `sluice launch` from outside: environments, output, signals, dead ranks, restarts. And a rank in
// the environments of the other launchers.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "collectives/socket.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

using std::chrono::seconds;

const std::string kProbe = SLUICE_RANK_PROBE;

class Launch : public CliTest {
 protected:
  static Words launch_words(int ranks, const Words& command, const Words& options = {}) {
    return Words{"launch", "-n", std::to_string(ranks)} + options + Words{"--"} + command;
  }
  static Words shell(const std::string& script) { return {"/bin/sh", "-c", script}; }
};

TEST_F(Launch, GivesEveryRankItsPlaceAndPrefixesItsLines) {
  const ChildOutcome outcome = succeed(launch_words(
      3, shell("echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR; "
               "echo to stderr >&2; printf 'no end'")));
  std::vector<std::string> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  std::vector<std::string> want;
  for (const std::string rank : {"0", "1", "2"}) {
    want.push_back("[" + rank + "] " + rank + " of 3, " + rank + " of 3 at 127.0.0.1");
    want.push_back("[" + rank + "] no end");
    EXPECT_TRUE(holds(outcome.err, "[" + rank + "] to stderr\n"));
  }
  EXPECT_EQ(lines, want);
  EXPECT_TRUE(holds(outcome.err, "launch   3 ranks"));
}

TEST_F(Launch, TheRanksFindEachOtherAndAgree) {
  for (const int ranks : {1, 2, 4}) {
    const ChildOutcome outcome = succeed(launch_words(ranks, {kProbe}));
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(holds(outcome.out, "[" + std::to_string(rank) + "] rank " + std::to_string(rank) +
                                         " of " + std::to_string(ranks) + " has the sum " +
                                         std::to_string((1 << ranks) - 1) + "\n"));
    }
  }
}

// With events for scripts, rank 0 speaks alone.
TEST_F(Launch, EventsOfRankZeroStayBare) {
  const ChildOutcome outcome =
      succeed(launch_words(2, shell("echo \"{\\\"rank\\\":$RANK}\"") + Words{"--json"}));
  EXPECT_EQ(outcome.out, "{\"rank\":0}\n");
  EXPECT_TRUE(holds(outcome.err, "[1] {\"rank\":1}\n"));
}

TEST_F(Launch, TheFirstFailureIsTheExitStatus) {
  // The others end by themselves, because the control plane tells them.
  const ChildOutcome failed = run(launch_words(3, {kProbe, "fail", "1", "7"}));
  EXPECT_EQ(failed.exit_status, 7) << failed.err;
  EXPECT_TRUE(holds(failed.err, "launch   rank 1 of 3 ended with status 7"));
  EXPECT_TRUE(holds(failed.err, "[0] rank 1 of 3 is gone"));
  EXPECT_TRUE(holds(failed.err, "[2] rank 1 of 3 is gone"));
  const ChildOutcome killed = run(launch_words(2, {kProbe, "kill", "0"}));
  EXPECT_EQ(killed.exit_status, 3) << killed.err;
  EXPECT_TRUE(holds(killed.err, "launch   rank 0 of 2 was killed by signal 9"));
  EXPECT_TRUE(holds(killed.err, "[1] rank 0 of 2 is gone"));
}

// Ranks that still wait for each other get the report, too: by rank 0, or by the launcher in its
// place.
TEST_F(Launch, ARankThatEndsBeforeTheMeetingIsNamedAtOnce) {
  for (const std::string lost : {"0", "1", "2"}) {
    const auto began = std::chrono::steady_clock::now();
    // Rank 2 comes when rank 0 has ended.
    const ChildOutcome outcome =
        run(launch_words(3, shell("if [ $RANK = " + lost +
                                  " ]; then kill -9 $$; fi; "
                                  "if [ $RANK = 2 ]; then /bin/sleep 0.3; fi; exec " +
                                  kProbe)));
    EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(8));
    EXPECT_EQ(outcome.exit_status, 3) << outcome.err;
    const std::string words = "rank " + lost + " of 3 was killed by signal 9";
    for (const std::string rank : {"0", "1", "2"}) {
      EXPECT_EQ(holds(outcome.err, "[" + rank + "] " + words + " before the ranks had met"),
                rank != lost)
          << outcome.err;
    }
    EXPECT_TRUE(holds(outcome.err, "launch   " + words)) << outcome.err;
  }
}

// A survivor that does not end is killed, with what it has started.
TEST_F(Launch, SurvivorsAreKilledAfterTheGracePeriod) {
  const auto began = std::chrono::steady_clock::now();
  const ChildOutcome outcome = run(launch_words(
      2,
      shell(
          "if [ $RANK = 1 ]; then exit 5; fi; trap '' TERM; /bin/sleep 300 & wait; /bin/sleep 300"),
      {"--grace", "0.5"}));
  EXPECT_EQ(outcome.exit_status, 5) << outcome.err;
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(20));
}

// A daemon keeps the rank's output open.
TEST_F(Launch, EndsThoughAProcessThatLeftItsRankLivesOn) {
  const auto began = std::chrono::steady_clock::now();
  const ChildOutcome outcome =
      run(launch_words(1, shell("setsid /bin/sleep 20 & echo done; exit 0")));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_TRUE(holds(outcome.out, "[0] done"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
}

TEST_F(Launch, ForwardsSignalsAndReturnsTheRanksStatus) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto child = start(launch_words(
        2,
        shell("trap 'echo saved; exit " + std::to_string(128 + signal) + "' " +
              std::to_string(signal) + "; echo ready; while :; do /bin/sleep 0.05; done"),
        {"--restarts", "3"}));
    child->wait_for_output("[0] ready", kCliDeadline);
    child->wait_for_output("[1] ready", kCliDeadline);
    child->send(signal);
    const ChildOutcome outcome = child->wait(kCliDeadline);
    EXPECT_EQ(outcome.exit_status, 128 + signal);
    EXPECT_TRUE(holds(outcome.out, "[0] saved"));
    EXPECT_TRUE(holds(outcome.out, "[1] saved"));
    EXPECT_FALSE(holds(outcome.err, "restart"));
  }
}

// Ranks never outlive their launcher.
TEST_F(Launch, RanksDieWithTheLauncher) {
  const auto child = start(launch_words(1, shell("echo pid $$ end; exec /bin/sleep 300")));
  child->wait_for_output(" end", kCliDeadline);
  child->send(SIGKILL);
  const std::string out = child->wait(kCliDeadline).out;
  const pid_t rank = std::stoi(out.substr(out.find("pid ") + 4));
  const Deadline deadline = Deadline::after_seconds(20);
  while (::kill(rank, 0) == 0 && !deadline.passed()) {
    // In a container nobody may wait for the orphan: it then stays as a zombie.
    std::ifstream status("/proc/" + std::to_string(rank) + "/stat");
    const std::string text((std::istreambuf_iterator<char>(status)), {});
    if (text.find(") Z ") != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(deadline.passed());
}

TEST_F(Launch, RestartsAfterAFaultButNotAfterARefusal) {
  const ChildOutcome again =
      run(launch_words(2, {kProbe, "once", path("mark").string()}, {"--restarts", "1"}));
  EXPECT_EQ(again.exit_status, 0) << again.err;
  EXPECT_TRUE(holds(again.err, "launch   restart 1 of 1"));
  const ChildOutcome refused = run(launch_words(2, shell("exit 2"), {"--restarts", "5"}));
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_FALSE(holds(refused.err, "restart"));
  const ChildOutcome always = run(launch_words(1, shell("exit 3"), {"--restarts", "2"}));
  EXPECT_EQ(always.exit_status, 3);
  EXPECT_TRUE(holds(always.err, "restart 2 of 2"));
}

// As many ranks train as the configuration says.
TEST_F(Launch, TrainRunsAsOneRankAndSaysThatTwoAreTooMany) {
  const std::string alone = hash_of(succeed(train_words({"log.dir=alone"})));
  EXPECT_EQ(hash_of(succeed(launch_words(1, train_words({"log.dir=launched"})))), alone);
  const ChildOutcome two = run(launch_words(2, train_words()));
  EXPECT_EQ(two.exit_status, 2);
  EXPECT_TRUE(holds(two.err, "[0] sluice: parallel.data is 1, and the job has 2 ranks"));
  EXPECT_FALSE(holds(two.err, "[1] sluice: "));
}

TEST_F(Launch, BadArgumentsAreRefused) {
  expect_refused({"launch", "-n", "2"}, {"launch needs a command after --"});
  expect_refused({"launch", "-n", "2", "train", "demo.toml"}, {"its command after --"});
  expect_refused({"launch", "-n", "2", "--", "plan", "demo.toml"}, {"'plan' needs no launch"});
  expect_refused({"launch", "--", "train", "config.toml"}, {"--ranks is required"});
  expect_refused({"launch", "-n", "0", "--", "train", "config.toml"}, {"1"});
  const ChildOutcome missing = run(launch_words(1, {"/no/such/program"}));
  EXPECT_EQ(missing.exit_status, 2);
  EXPECT_TRUE(holds(missing.err, "cannot start /no/such/program: No such file"));
}

// A rank for each environment of a launcher, without the launcher.
class OtherLaunchers : public CliTest {
 protected:
  using Variables = std::map<std::string, std::string>;
  void expect_sums(const std::vector<Variables>& ranks) const {
    std::vector<std::unique_ptr<ChildProcess>> children;
    for (const Variables& variables : ranks) {
      children.push_back(std::make_unique<ChildProcess>(Words{kProbe}, path(), variables));
    }
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      const ChildOutcome outcome = children[rank]->wait(kCliDeadline);
      EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
      EXPECT_TRUE(holds(outcome.out, "rank " + std::to_string(rank) + " of 2 has the sum 3"));
    }
  }
  // A rank of two whose other rank is somebody else's business.
  std::unique_ptr<ChildProcess> start_half(int rank, std::uint16_t port) const {
    Variables variables = environment();
    variables.insert({{"RANK", std::to_string(rank)},
                      {"WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", std::to_string(port)}});
    return std::make_unique<ChildProcess>(Words{SLUICE_PROGRAM} + train_words({"parallel.data=2"}),
                                          path(), variables);
  }
};

// A mail or ssh server greets whoever connects.
TEST_F(OtherLaunchers, AProgramThatSpeaksFirstAtThePortIsRefusedAtOnce) {
  const collectives::Socket listener = collectives::listen_at("127.0.0.1", 0);
  std::jthread server([&listener](const std::stop_token& stop) {
    const std::string banner = "SSH-2.0-OpenSSH_9.6\r\n";
    std::vector<collectives::Socket> guests;
    while (!stop.stop_requested()) {
      pollfd waiting{listener.descriptor(), POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1) continue;
      guests.emplace_back(::accept(listener.descriptor(), nullptr, nullptr));
      static_cast<void>(
          ::send(guests.back().descriptor(), banner.data(), banner.size(), MSG_NOSIGNAL));
    }
  });
  const auto rank = start_half(1, collectives::port_of(listener));
  const ChildOutcome outcome = rank->wait(seconds(20));
  EXPECT_EQ(outcome.exit_status, 2) << outcome.err;
  EXPECT_TRUE(holds(outcome.err, "where another program listens and not rank 0")) << outcome.err;
}

// There is nothing to save yet.
TEST_F(OtherLaunchers, ASignalEndsARankThatWaitsForTheOthers) {
  const auto rank = start_half(0, collectives::port_of(collectives::listen_at("127.0.0.1", 0)));
  rank->wait_for_error("waiting for the other ranks", kCliDeadline);
  rank->send(SIGTERM);
  EXPECT_EQ(rank->wait(seconds(20)).signal, SIGTERM);
}

TEST_F(OtherLaunchers, TorchrunOpenMpiAndSlurm) {
  const std::string port =
      std::to_string(collectives::port_of(collectives::listen_at("127.0.0.1", 0)));
  // Derived ports depend on the job's number.
  const std::string job = std::to_string(::getpid());
  std::vector<Variables> torchrun, open_mpi, slurm;
  for (const std::string rank : {"0", "1"}) {
    torchrun.push_back({{"RANK", rank},
                        {"WORLD_SIZE", "2"},
                        {"LOCAL_RANK", rank},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "localhost"},
                        {"MASTER_PORT", port},
                        {"TORCHELASTIC_RUN_ID", "none"},
                        {"TORCHELASTIC_USE_AGENT_STORE", "False"}});
    open_mpi.push_back({{"OMPI_COMM_WORLD_RANK", rank},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_MCA_ess_base_jobid", job}});
    slurm.push_back({{"SLURM_PROCID", rank},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"SLURM_LOCALID", rank},
                     {"SLURM_JOB_ID", job},
                     {"SLURM_STEP_ID", "0"}});
  }
  expect_sums(torchrun);
  expect_sums(open_mpi);
  expect_sums(slurm);
}

}  // namespace
}  // namespace sluice::testing
