// Jobs that are refused: one sentence, printed by one rank, exit 2 on all within five seconds, and
// nothing on the disk is touched.
#include <filesystem>

#include "base/topology.hpp"
#include "collectives/socket.hpp"
#include "tests/tools/sluice/rank_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

class RankRefusals : public RankTest {
 protected:
  // told_by: the ranks that print a sentence, each with all of `words`.
  void expect_refused_job(JobProcesses& job, const Words& words,
                          const std::vector<std::size_t>& told_by = {0}) const {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<ChildOutcome> outcomes = job.wait(kCliDeadline);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ": " + outcomes[rank].err);
      EXPECT_EQ(outcomes[rank].exit_status, 2);
      const bool tells = std::find(told_by.begin(), told_by.end(), rank) != told_by.end();
      EXPECT_EQ(sentences(outcomes[rank].err), tells ? 1 : 0);
      for (const std::string& word : words) {
        EXPECT_TRUE(!tells || holds(outcomes[rank].err, word)) << word;
      }
    }
    EXPECT_TRUE(snapshot() == before_) << "something was created or changed";
  }
  // Without the notices of a rank that waits.
  static std::ptrdiff_t sentences(const std::string& err) {
    const auto lines = lines_of(err);
    return std::count_if(lines.begin(), lines.end(),
                         [](const std::string& line) { return line.starts_with("sluice:"); });
  }
  void expect_all_refused(int ranks, const Words& settings, const Words& words) {
    SCOPED_TRACE(::testing::PrintToString(settings));
    before_ = snapshot();
    const auto job = start_ranks(ranks, words_of(settings));
    expect_refused_job(*job, words);
  }
  static Words words_of(const Words& settings) {
    return Words{"train", "config.toml", "--set"} + settings;
  }

  std::map<std::string, std::string> before_;
};

TEST_F(RankRefusals, WhatTheseRanksCannotRun) {
  expect_all_refused(2, rank_settings(3, 3, {"train.accumulate=6"}),
                     {"parallel.data is 3, and the job has 2 ranks"});
  expect_all_refused(2, rank_settings(2, 3, {"train.accumulate=3"}),
                     {"train.accumulate is 3", "must be a multiple of parallel.data = 2"});
  expect_all_refused(2, rank_settings(2, 3, {"train.accumulate=6", "train.fold_groups=6"}),
                     {"train.fold_groups is 6, and with parallel.data = 2"});
  expect_all_refused(2, rank_settings(2, 3, {"memory.backend=cuda"}),
                     {"memory.backend = \"cuda\" cannot be had", "use \"host\""});
  expect_all_refused(2, rank_settings(2, 3, {"parallel.transport=nccl"}),
                     {"parallel.transport says how the memory of GPUs travels"});
  expect_all_refused(2, rank_settings(2, 1, {"memory.place.weight=pinned"}),
                     {"memory.place.weight", "use parallel.zero = 3"});
  expect_all_refused(2, rank_settings(2, 3, {"memory.device=3MiB", "memory.pinned=1MiB"}),
                     {"needs"});
}

TEST_F(RankRefusals, OneProcessWhereSeveralAreAsked) {
  expect_refused({"train", "config.toml", "--set", "parallel.data=2", "train.accumulate=2"},
                 {"parallel.data is 2, and this process is alone", "sluice launch -n 2"});
}

// Each rank alone would have the memory.
TEST_F(RankRefusals, MoreMemoryThanTheNodeHas) {
  const std::uint64_t most = read_host_topology().available_bytes;
  const std::string bytes = std::to_string(most / 10 * 6);
  expect_all_refused(2, rank_settings(2, 3, {"memory.pinned=" + bytes}),
                     {"memory.pinned", "for each of 2 ranks", "are together more than"});
}

TEST_F(RankRefusals, RanksThatWereStartedDifferently) {
  const Words same = words_of(rank_settings(3, 3, {"train.accumulate=6"}));
  before_ = snapshot();
  const auto other = start_each({same, same, same + Words{"--set", "optimizer.lr=0.5"}});
  expect_refused_job(*other, {"rank 2 of 3 has optimizer.lr = 0.5, and rank 0 has 3e-04"});

  // These data have the same keys, and another text after them.
  TempDirectory elsewhere;
  fs::copy(path(), elsewhere.path(), fs::copy_options::recursive);
  write_file(elsewhere.path() / "text.txt", read_file(path("text.txt")) + "One line more.\n");
  const Words two = words_of(rank_settings(2, 3));
  const Words command = Words{SLUICE_PROGRAM} + two;
  JobProcesses data({{command, path(), 0}, {command, elsewhere.path(), 1}}, 2, environment());
  expect_refused_job(data, {"rank 1 of 2 has data.paths with the fingerprint"});

  // This program has the same version, and other bytes.
  const fs::path program = elsewhere.path() / "sluice";
  fs::copy_file(SLUICE_PROGRAM, program);
  std::ofstream(program, std::ios::app | std::ios::binary) << "another build";
  JobProcesses programs({{command, path(), 0}, {Words{program.string()} + two, path(), 1}}, 2,
                        environment());
  expect_refused_job(programs, {"rank 1 of 2 has a program with the digest"});
}

// As on machines with other processors.
TEST_F(RankRefusals, ProductsThatRoundOtherwise) {
  before_ = snapshot();
  const Words command = Words{SLUICE_PROGRAM} + words_of(rank_settings(2, 3));
  JobProcesses job({{command, path(), 0}, {command, path(), 1, {{"ONEDNN_MAX_CPU_ISA", "SSE41"}}}},
                   2, environment());
  expect_refused_job(job, {"rank 1 of 2 has arithmetic 'onednn-", "and rank 0 has 'onednn-"});
}

TEST_F(RankRefusals, ARankNumberThatIsUsedTwice) {
  before_ = snapshot();
  const Words command =
      Words{SLUICE_PROGRAM} + words_of(rank_settings(3, 3, {"train.accumulate=6"}));
  JobProcesses ones({{command, path(), 0}, {command, path(), 1}, {command, path(), 1}}, 3,
                    environment());
  expect_refused_job(ones, {"two processes are rank 1 of 3; give each a RANK of its own"});
  JobProcesses zeros({{command, path(), 0}, {command, path(), 0}}, 3, environment());
  // Whichever had the port first tells it.
  std::string told;
  for (const ChildOutcome& outcome : zeros.wait(kCliDeadline)) {
    EXPECT_EQ(outcome.exit_status, 2);
    told += outcome.err;
  }
  EXPECT_EQ(sentences(told), 1) << told;
  EXPECT_TRUE(holds(told, "two processes are rank 0 of 3; give each a RANK of its own")) << told;
}

// A job that is complete goes on; the process too many learns why it has no place.
TEST_F(RankRefusals, AProcessTooMany) {
  const std::uint16_t port = collectives::port_of(collectives::listen_at("127.0.0.1", 0));
  const Words command =
      Words{SLUICE_PROGRAM} +
      train_words(rank_settings(2, 3, {"train.steps=16", "memory.link_latency=1ms"}));
  JobProcesses job({{command, path(), 0}, {command, path(), 1}}, 2, environment(), port);
  job.rank(0).wait_for_output(R"("event":"plan")", kCliDeadline);
  JobProcesses late({{command, path(), 1}}, 2, environment(), port);
  const ChildOutcome refused = late.wait(kCliDeadline).front();
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_EQ(sentences(refused.err), 1) << refused.err;
  EXPECT_TRUE(holds(refused.err, "two processes are rank 1 of 2")) << refused.err;
  for (const ChildOutcome& outcome : job.wait(kCliDeadline)) {
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  }
}

TEST_F(RankRefusals, APortThatAnotherProgramHas) {
  before_ = snapshot();
  const collectives::Socket taken = collectives::listen_at("127.0.0.1", 0);
  const Words command = Words{SLUICE_PROGRAM} + words_of(rank_settings(2, 3));
  JobProcesses job({{command, path(), 0}, {command, path(), 1}}, 2, environment(),
                   collectives::port_of(taken));
  // The ranks cannot reach each other, so each has a sentence.
  expect_refused_job(job, {"another program", "give the job a free MASTER_PORT"}, {0, 1});
}

}  // namespace
}  // namespace sluice::testing
