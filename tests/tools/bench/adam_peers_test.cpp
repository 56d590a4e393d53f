#include "tools/bench/adam_peers.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/set_variable.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/bench/bench_adam.hpp"
#include "tools/bench/bench_table.hpp"

namespace sluice::bench {
namespace {

using testing::holds;

constexpr std::int64_t kElems = 4096;
constexpr AdamPeers::Deadlines kShort{.start_seconds = 20, .step_seconds = 20};

// Introduces itself with two peers, and answers each request that names one of them.
const std::string kIntroduction =
    R"(echo '{"protocol":1,"versions":"torch 9","missing":null,"threads":1,"huge_page_bytes":4096,)"
    R"("peers":[{"name":"one","job":"all","bytes_per_param":28},)"
    R"({"name":"two","job":"half","bytes_per_param":14}]}')";
const std::string kAnswers = R"(
while read -r line; do
  case "$line" in
    *one*) echo '{"ran":"one","seconds":0.001}' ;;
    *two*) echo '{"ran":"two","seconds":0.004}' ;;
    *) echo '{"error":"no such peer"}' ;;
  esac
done
)";

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

// A shell script in the interpreter's place.
class FakePeers : public ::testing::Test {
 protected:
  std::string python(const std::string& commands) {
    const std::filesystem::path path = directory_.path() / "python";
    write_file(path, "#!/bin/sh\n" + commands);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path.string();
  }
  AdamPeers open(const std::string& commands, const AdamPeers::Deadlines& deadlines = kShort) {
    std::optional<AdamPeers> peers = AdamPeers::open(python(commands), 1, kElems, deadlines);
    if (!peers) throw Error("not installed");
    return std::move(*peers);
  }
  // The message of a failure; "" where there is none.
  template <class Run>
  static std::string failure(const Run& run) {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 3);
      return error.what();
    }
    return "";
  }
  std::string failure_of_step(const std::string& commands) {
    AdamPeers peers = open(kIntroduction + "\n" + commands);
    return failure([&] { peers.seconds("one"); });
  }

  testing::TempDirectory directory_;
};

TEST_F(FakePeers, AnswerStepsOfTheVariantsThatTheyHave) {
  AdamPeers peers = open(kIntroduction + kAnswers);
  ASSERT_EQ(peers.variants().size(), 2u);
  EXPECT_EQ(peers.variants()[0].name, "one");
  EXPECT_EQ(peers.variants()[1].bytes_per_param, 14u);
  EXPECT_EQ(peers.versions(), "torch 9");
  EXPECT_EQ(peers.missing(), "");
  EXPECT_EQ(peers.huge_page_bytes(), 4096u);
  EXPECT_EQ(peers.seconds("one"), 0.001);
  EXPECT_EQ(peers.seconds("two"), 0.004);
  EXPECT_EQ(peers.seconds("one"), 0.001);
  EXPECT_TRUE(holds(failure([&] { peers.seconds("three"); }), "no such peer"));
  EXPECT_EQ(peers.seconds("two"), 0.004) << "an error is an answer like another";
}

TEST_F(FakePeers, GetElementsThreadsAndTheScript) {
  // The fake returns the first line of its script and its arguments as the versions.
  AdamPeers peers = open(
      R"(first=$(head -c 22 "$1"); shift
echo "{\"protocol\":1,\"versions\":\"$first $*\",\"missing\":\"DeepSpeed is not there\",)"
      R"(\"threads\":1,\"huge_page_bytes\":0,\"peers\":[]}"
read -r line)");
  EXPECT_EQ(peers.versions(), "#!/usr/bin/env python3 --threads 1 --elems 4096");
  EXPECT_EQ(peers.missing(), "DeepSpeed is not there");
}

TEST_F(FakePeers, AreAbsentWithoutAnInterpreter) {
  EXPECT_FALSE(AdamPeers::open((directory_.path() / "none").string(), 1, kElems));
}

TEST_F(FakePeers, DeadPeersAreReportedWithTheirLastWords) {
  const std::string at_start =
      failure([&] { open("echo 'Traceback' >&2\necho 'ImportError: torch' >&2\nexit 7"); });
  EXPECT_TRUE(holds(at_start, "ended with status 7: ImportError: torch"));
  EXPECT_FALSE(holds(at_start, "Traceback"));
  const std::string in_a_step = failure_of_step("read -r line; kill -9 $$");
  EXPECT_TRUE(holds(in_a_step, "was ended by signal 9"));
}

TEST_F(FakePeers, DeathBetweenStepsDoesNotEndTheBench) {
  AdamPeers peers = open(kIntroduction + "\nexec <&-; exit 3");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (int attempt = 0; attempt < 2; ++attempt) {  // writes to it would raise SIGPIPE
    EXPECT_NE(failure([&] { peers.seconds("one"); }), "");
  }
}

TEST_F(FakePeers, NonsenseAnswersAreRefused) {
  const auto answered = [&](const std::string& answer) {
    return failure_of_step("read -r line; echo '" + answer + "'; read -r line");
  };
  for (const std::string answer :
       {"good morning", "[]", R"({"ran":"two","seconds":1})", R"({"ran":"one"})", "",
        R"({"ran":"one","seconds":"1"})", R"({"ran":"one","seconds":0})",
        R"({"ran":"one","seconds":-1})", R"({"ran":"one","seconds":null})"}) {
    EXPECT_TRUE(holds(answered(answer), "answer")) << answer;
  }
  EXPECT_TRUE(holds(answered(R"({"error":"one is not AdamW here"})"), "one is not AdamW here"));
  EXPECT_TRUE(holds(failure_of_step("head -c 2000000 /dev/zero; read -r line"), "1 MiB"));
}

TEST_F(FakePeers, WrongIntroductionsAreRefused) {
  const auto introduced = [&](const std::string& words) {
    return failure([&] { open("echo '" + words + "'; read -r line"); });
  };
  EXPECT_TRUE(holds(introduced(R"({"protocol":2})"), "protocol 2"));
  EXPECT_TRUE(holds(introduced(R"({"protocol":1,"threads":5})"), "5 threads"));
  EXPECT_TRUE(holds(introduced(R"({"protocol":1,"threads":1})"), "introduce"));
  EXPECT_TRUE(holds(introduced(R"({"protocol":1,"threads":1,"versions":"","missing":null,)"
                               R"("huge_page_bytes":0,"peers":[{"name":"one"}]})"),
                    "introduce"));
}

TEST_F(FakePeers, HangingPeersAreEndedAtTheDeadline) {
  const AdamPeers::Deadlines soon{.start_seconds = 20, .step_seconds = 0.1};
  const std::string file = (directory_.path() / "pid").string();
  const auto begin = std::chrono::steady_clock::now();
  {
    AdamPeers peers =
        open("echo $$ > " + file + "\n" + kIntroduction + "\ntrap '' TERM; exec sleep 600", soon);
    EXPECT_THROW(peers.seconds("one"), TimeoutError);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  int pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_NE(::kill(pid, 0), 0) << "the hung process lives on";
  EXPECT_THROW(open("exec sleep 600", {.start_seconds = 0.1, .step_seconds = 1}), TimeoutError);
}

TEST_F(FakePeers, StandInTheBenchBesideOurs) {
  AdamBenchOptions options;
  options.elems = 2 * kernels::host::kUpdatePieceElems;
  options.threads = 1;
  options.rounds = 7;
  options.peers_python = python(kIntroduction + kAnswers);
  const nlohmann::json event = run_adam_bench(options);
  const nlohmann::json& figures = event.at("figures");
  const nlohmann::json& peers = figures.at("peers");
  EXPECT_EQ(peers.at("versions"), "torch 9");
  EXPECT_FALSE(peers.contains("missing"));
  const nlohmann::json& one = peers.at("variants").at("one");
  EXPECT_EQ(one.at("bytes_per_param"), 28);
  const double theirs = static_cast<double>(options.elems) / 0.001;
  EXPECT_DOUBLE_EQ(one.at("params_per_s").get<double>(), theirs);
  // Theirs being constant, the median of ratios is the ratio of the medians.
  EXPECT_GT(one.at("ratio").size(), 2u);
  for (const auto& [ours, ratio] : one.at("ratio").items()) {
    const nlohmann::json& variant = figures.at("variants").at(ours);
    EXPECT_NEAR(ratio.get<double>() * theirs, variant.at("params_per_s").get<double>(),
                theirs * 1e-9);
  }
  const std::string table = bench_table(event);
  EXPECT_TRUE(holds(table, "\none "));
  EXPECT_TRUE(holds(table, "torch 9"));
}

TEST_F(FakePeers, FailedPeersEndTheBenchWithASentence) {
  AdamBenchOptions options;
  options.elems = kernels::host::kUpdatePieceElems;
  options.threads = 1;
  options.rounds = 7;
  options.peers_python = python(kIntroduction + "\nread -r line; echo '{\"error\":\"broken\"}'");
  EXPECT_TRUE(holds(failure([&] { run_adam_bench(options); }), "broken"));
  options.peers_python = (directory_.path() / "none").string();
  EXPECT_THROW(run_adam_bench(options), InputError);
}

TEST_F(FakePeers, AreFoundInTheCacheOnceTheyAreReady) {
  const testing::SetVariable cache("XDG_CACHE_HOME",
                                   std::filesystem::absolute(directory_.path()).string());
  const std::filesystem::path venv =
      std::filesystem::absolute(directory_.path()) / "sluice" / "bench_peers";
  std::filesystem::create_directories(venv / "bin");
  EXPECT_THROW(python_of(venv.string()), InputError);
  std::filesystem::copy_file(python("exit 0"), venv / "bin" / "python");
  EXPECT_EQ(default_peers_python(), std::nullopt) << "not finished";
  write_file(venv / "ready", "torch\n");
  EXPECT_EQ(default_peers_python(), (venv / "bin" / "python").string());
  EXPECT_EQ(python_of(venv.string()), (venv / "bin" / "python").string());
}

}  // namespace
}  // namespace sluice::bench
