// `sluice train` on several ranks over Gloo: one rank's bits and files, whatever the ZeRO stage,
// the number of ranks and the places of state are.
#include <array>
#include <set>
#include <thread>

#include "tests/tools/sluice/rank_fixture.hpp"

namespace sluice::testing {
namespace {

using Ranks = RankTest;

struct RankCase {
  int ranks = 2;
  int zero = 3;
  Words settings;
};

TEST_F(Ranks, GiveOneRanksBits) {
  const std::vector<RankCase> cases{
      {2, 3, {"memory.place.optimizer=storage"}},
      {4, 3, {"memory.place.weight=storage", "memory.place.gradient=pinned"}},
      {2, 1, {"memory.place.weight=device", "memory.place.optimizer=pinned"}},
      {4, 2, {"memory.place.weight=device", "optimizer.placement=next_forward"}},
      {2, 0, {"memory.place.weight=device", "memory.place.gradient=device"}},
      {4, 3, {"train.fold_groups=4", "memory.place.optimizer=pinned"}},
      {2, 3, {"train.precision=fp16", "optimizer.placement=speculative"}},
      {2, 3, {"checkpoint.mode=durable", "checkpoint.every=2"}},
      {2, 0, {"parallel.server=true", "memory.place.optimizer=pinned"}},
      {4, 3, {"optimizer.name=muon", "memory.place.optimizer=storage"}},
      {2, 2, {"train.fold_groups=2", "memory.place.partial=storage"}},
  };
  std::map<Words, std::vector<std::string>> alone;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [ranks, zero, settings] = cases[i];
    SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(zero) + ", " +
                 ::testing::PrintToString(settings));
    const std::string run = "run" + std::to_string(i);
    const Words common = settings + Words{"train.eval_every=3", "train.micro_batch=1"};
    // One rank refuses the keys that only several have.
    Words of_one = Words{"train.accumulate=4", "log.dir=" + run + "-alone"} + common;
    std::erase_if(of_one, [](const std::string& setting) {
      return setting.starts_with("parallel.") || setting.starts_with("memory.place.partial");
    });
    const ChildOutcome one = succeed(train_words(of_one));
    const ChildOutcome several = run_launched(
        ranks, train_words(rank_settings(ranks, zero, Words{"log.dir=" + run} + common)));
    ASSERT_EQ(several.exit_status, 0) << several.err;
    EXPECT_EQ(result_of(several), result_of(one));
    EXPECT_GT(result_of(one).size(), 14u);
    // The files of rank 0 have no trace of the ranks.
    EXPECT_TRUE(read_file(path(run + "/0001/weights.safetensors")) ==
                read_file(path(run + "-alone/0001/weights.safetensors")));
  }
}

// Servers in turn have one rank's bits. An asynchronous one has its own, the same in every run.
TEST_F(Ranks, ServersOfSeveralUpdatesAreReproducible) {
  const Words common{"model.tie_embeddings=false",    "train.clip=0",
                     "train.micro_batch=1",           "optimizer.placement=in_backward",
                     "memory.place.optimizer=pinned", "train.steps=6"};
  const auto job = [&](const std::string& mode, const std::string& run, const char* accumulate) {
    const ChildOutcome outcome = run_launched(
        2, train_words(Words{"parallel.data=2", "parallel.server=true", "parallel.updates=6",
                             "parallel.server_mode=" + mode, accumulate, "log.dir=" + run} +
                       common));
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    const Json plan = events_of(outcome, "plan").at(0);
    EXPECT_EQ(plan.at("server_mode"), mode);
    // A step has an even share of its schedule's bytes, the last bytes to one or the other.
    const std::map<std::string, double> planned = numbers_of(plan.at("bytes_moved"));
    for (const Json& step : events_of(outcome, "step")) {
      const std::map<std::string, double> moved = numbers_of(step.at("bytes_moved"));
      EXPECT_EQ(moved.size(), planned.size());
      for (const auto& [path, bytes] : planned) EXPECT_NEAR(moved.at(path), bytes, 1) << path;
    }
    return outcome;
  };
  const ChildOutcome one =
      succeed(train_words(Words{"train.accumulate=4", "log.dir=alone"} + common));
  const ChildOutcome turns = job("rotating", "turns", "train.accumulate=4");
  EXPECT_TRUE(read_file(path("turns/0001/weights.safetensors")) ==
              read_file(path("alone/0001/weights.safetensors")));
  EXPECT_EQ(result_of(turns), result_of(one));
  const ChildOutcome first = job("asp", "first", "train.accumulate=1");
  const ChildOutcome again = job("asp", "again", "train.accumulate=1");
  EXPECT_EQ(result_of(first), result_of(again));
  EXPECT_GT(result_of(first).size(), 6u);
}

struct StageCase {
  int pipeline = 2;
  int data = 1;
  const char* order = "1f1b";
  Words settings;
};

TEST_F(Ranks, StagesGiveOneRanksBits) {
  const std::vector<StageCase> cases{
      {2, 1, "1f1b", {"memory.place.optimizer=storage"}},
      {2, 2, "zb-v", {"parallel.zero=1", "memory.place.optimizer=storage"}},
      {4, 1, "zb-h2", {"train.precision=fp16", "optimizer.placement=speculative"}},
      {2, 2, "vertical", {"parallel.zero=3", "checkpoint.mode=durable", "checkpoint.every=2"}},
  };
  const Words common{"model.layers=4", "train.eval_every=3", "train.micro_batch=1",
                     "train.accumulate=4"};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [pipeline, data, order, settings] = cases[i];
    SCOPED_TRACE(std::string(order) + ", " + ::testing::PrintToString(settings));
    const std::string run = "run" + std::to_string(i);
    const ChildOutcome one = succeed(
        train_words(settings + common + Words{"parallel.zero=0", "log.dir=" + run + "-alone"}));
    const ChildOutcome several = run_launched(
        pipeline * data,
        train_words(Words{"parallel.data=" + std::to_string(data),
                          "parallel.pipeline=" + std::to_string(pipeline),
                          std::string("parallel.schedule=") + order, "log.dir=" + run} +
                    settings + common));
    ASSERT_EQ(several.exit_status, 0) << several.err;
    EXPECT_EQ(result_of(several), result_of(one));
    EXPECT_GT(result_of(one).size(), 14u);
    EXPECT_TRUE(read_file(path(run + "/0001/weights.safetensors")) ==
                read_file(path(run + "-alone/0001/weights.safetensors")));
    // A step sent the bytes that were planned, in both dimensions of the mesh.
    const Json plan = events_of(several, "plan").at(0);
    EXPECT_GT(plan.at("bytes_moved").at("sent").at("pipeline"), 0);
    for (const Json& step : events_of(several, "step")) {
      if (plan.at("optimizer_placement") != "after_backward") break;
      EXPECT_EQ(step.at("bytes_moved").at("sent"), plan.at("bytes_moved").at("sent"));
    }
    EXPECT_TRUE(holds(several.err, "pipeline    " + std::string(order) + " on "));
  }
}

TEST_F(Ranks, EachHasFilesOfItsOwnAndTheFirstSpeaks) {
  const ChildOutcome outcome =
      run_launched(2, train_words(rank_settings(2, 3, {"checkpoint.every=3"})));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  const std::vector<Json> plan = events_of(outcome, "plan");
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].at("ranks"), 2);
  EXPECT_EQ(plan[0].at("per_rank").size(), 2u);
  // A step sent the bytes that were planned.
  for (const Json& step : events_of(outcome, "step")) {
    EXPECT_EQ(step.at("bytes_moved").at("sent"), plan[0].at("bytes_moved").at("sent"));
  }
  const std::vector<Json> done = events_of(outcome, "done");
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].at("per_rank").size(), 2u);
  for (const char* const file : {"events.jsonl", "trace.json", "plan.json"}) {
    EXPECT_TRUE(std::filesystem::exists(path("run/0001") / file)) << file;
    EXPECT_TRUE(std::filesystem::exists(path("run/0001/rank-1") / file)) << file;
  }
  EXPECT_FALSE(std::filesystem::exists(path("run/0001/rank-1/weights.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(path("run/0001/lock")));
  EXPECT_TRUE(holds(outcome.err, "[0] places      rank 0 is process "));
  EXPECT_FALSE(holds(outcome.err, "[1] "));
  // The second rank reports the same losses to its own events.
  std::istringstream lines(read_file(path("run/0001/rank-1/events.jsonl")));
  std::size_t steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json event = Json::parse(line);
    if (event.at("event") != "step") continue;
    EXPECT_EQ(event.at("loss"), events_of(outcome, "step").at(steps).at("loss"));
    ++steps;
  }
  EXPECT_EQ(steps, 6u);
}

// A signal to one rank, or to all through the launcher.
TEST_F(Ranks, StopTogetherAndResumeToTheSameBits) {
  const Words settings = rank_settings(2, 3, {"train.steps=12"});
  const std::string whole =
      hash_of(run_launched(2, train_words(settings + Words{"log.dir=whole"})));
  ASSERT_EQ(whole.size(), 32u);
  for (const bool all : {false, true}) {
    SCOPED_TRACE(all);
    const Words slow = settings + Words{kSlowLink};
    const auto child = start(launch_words(2, train_words(slow)));
    child->wait_for_output(R"("event":"plan")", kCliDeadline);
    child->wait_for_output(R"("event":"step","step":2,)", kCliDeadline);
    if (all) {
      child->send(SIGTERM);
    } else {
      const std::string plan = read_file(path("run/0001/events.jsonl"));
      const Json event = Json::parse(plan.substr(0, plan.find('\n')));
      ::kill(event.at("places").at(1).at("process").get<pid_t>(), SIGTERM);
    }
    const ChildOutcome stopped = child->wait(kCliDeadline);
    EXPECT_EQ(stopped.exit_status, 128 + SIGTERM) << stopped.err;
    EXPECT_EQ(events_of(stopped).back().at("event"), "checkpoint");
    EXPECT_EQ(events_of(stopped).back().at("step"), events_of(stopped, "step").size());
    EXPECT_TRUE(holds(stopped.err, "[0] stopped     by signal 15; continue with: "));
    const ChildOutcome resumed = run_launched(2, train_words(settings) + Words{"--resume", "run"});
    ASSERT_EQ(resumed.exit_status, 0) << resumed.err;
    EXPECT_EQ(hash_of(resumed), whole);
    std::filesystem::remove_all(path("run"));
  }
}

// Files have no trace of the ranks that wrote them.
TEST_F(Ranks, AnyNumberOfRanksResumes) {
  const std::string whole = hash_of(succeed(train_words({"train.accumulate=4", "log.dir=whole"})));
  for (const auto& [from, to] : {std::pair{1, 2}, {2, 4}, {4, 1}}) {
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    const auto train = [&](int ranks, const Words& more) {
      const Words words = train_words(rank_settings(ranks, 3 * (ranks > 1))) + more;
      return ranks == 1 ? run(words) : run_launched(ranks, words);
    };
    ASSERT_EQ(train(from, {"--steps", "3"}).exit_status, 0);
    const ChildOutcome resumed = train(to, {"--resume", "run"});
    ASSERT_EQ(resumed.exit_status, 0) << resumed.err;
    EXPECT_EQ(events_of(resumed, "step").size(), 3u);
    EXPECT_EQ(hash_of(resumed), whole);
    std::filesystem::remove_all(path("run"));
  }
}

}  // namespace
}  // namespace sluice::testing
