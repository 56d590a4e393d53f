// SIGINT, SIGTERM and SIGHUP: the step is finished, a checkpoint saved, the exit status says which;
// a second signal does not wait.
#include <thread>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kSteps = "train.steps=12";

class Signals : public CliTest {
 protected:
  // A slow run that gets `signals` after its second step: the last thing that it does is to save
  // the step that it has finished.
  ChildOutcome stopped_by(const std::vector<int>& signals, const Words& settings = {}) const {
    const auto child = start(train_words(Words{kSlowLink, kSteps} + settings));
    child->wait_for_output(R"("event":"step","step":2,)", kCliDeadline);
    for (const int signal : signals) child->send(signal);
    ChildOutcome stopped = child->wait(kCliDeadline);
    EXPECT_EQ(stopped.exit_status, 128 + signals.front()) << stopped.err;
    EXPECT_TRUE(events_of(stopped, "done").empty());
    EXPECT_EQ(events_of(stopped).back().at("event"), "checkpoint");
    EXPECT_EQ(events_of(stopped).back().at("step"), events_of(stopped, "step").size());
    return stopped;
  }
};

TEST_F(Signals, SaveAndAResumeEndsAsAnUninterruptedRun) {
  const std::string whole = hash_of(succeed(train_words({kSteps, "log.dir=whole"})));
  ASSERT_EQ(whole.size(), 32u);
  for (const int signal : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(signal);
    const std::size_t steps = events_of(stopped_by({signal}), "step").size();
    EXPECT_LT(steps, 12u);
    const ChildOutcome resumed = succeed(train_words({kSteps}) + Words{"--resume", "run"});
    EXPECT_EQ(events_of(resumed, "step").at(0).at("step"), steps + 1);
    EXPECT_EQ(events_of(resumed, "step").size(), 12 - steps);
    EXPECT_EQ(hash_of(resumed), whole);
    std::filesystem::remove_all(path("run"));
  }
}

// A terminal that closes; its shell and the kernel may both say so.
TEST_F(Signals, HangupSavesAndASecondOneWaitsToo) {
  EXPECT_TRUE(holds(stopped_by({SIGHUP, SIGHUP}).err, "continue with: sluice train run/0001"));
}

// The evaluation of step 2 is cut short; the checkpoint of the step is not.
TEST_F(Signals, AnEvaluationIsNotWaitedFor) {
  const ChildOutcome stopped =
      stopped_by({SIGTERM}, {"memory.place.weight=pinned", "data.eval_fraction=0.5",
                             "train.eval_every=2", "train.micro_batch=1"});
  EXPECT_TRUE(events_of(stopped, "eval").empty());
  EXPECT_EQ(events_of(stopped, "step").size(), 2u);
}

// A plan of many seconds: nobody waits for it, and nothing was made that could be saved.
TEST_F(Signals, EndAPlanAtOnce) {
  const auto before = snapshot();
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const std::string command : {"train", "plan"}) {
      SCOPED_TRACE(command + " " + std::to_string(signal));
      const auto child = start({command, "config.toml", "--set", "model.layers=1500",
                                "recompute.policy=auto", "train.accumulate=8"});
      child->wait_for_error("planning", kCliDeadline);
      const auto begin = std::chrono::steady_clock::now();
      child->send(signal);
      const ChildOutcome stopped = child->wait(kCliDeadline);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(2));
      // A shell says 128 + the signal of a process that a signal has ended.
      EXPECT_EQ(stopped.signal == 0 ? stopped.exit_status : 128 + stopped.signal, 128 + signal);
      EXPECT_EQ(holds(stopped.err, "stopped before the run began"), command == "train");
    }
  }
  EXPECT_EQ(snapshot(), before);
}

TEST_F(Signals, ASecondOneEndsTheProgramAtOnce) {
  // A step of some eleven seconds.
  const auto child = start(train_words({"memory.link_latency=1.0", "memory.place.weight=pinned"}));
  child->wait_for_output(R"("event":"plan")", kCliDeadline);
  child->send(SIGINT);
  std::this_thread::sleep_for(milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  const ChildOutcome stopped = end_run(*child);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(8));
  EXPECT_TRUE(events_of(stopped, "step").empty());
  EXPECT_TRUE(events_of(stopped, "checkpoint").empty());
}

}  // namespace
}  // namespace sluice::testing
