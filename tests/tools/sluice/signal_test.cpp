// SIGINT, SIGTERM and SIGHUP: the step is finished, a checkpoint saved, the exit status says which;
// a second signal does not wait.
#include <signal.h>

#include <thread>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kSteps = "train.steps=12";
// A modelled link slows the run that is interrupted: every copy takes this long, and no bit
// differs.
constexpr const char* kSlowLink = "memory.link_latency=20ms";

class Signals : public CliTest {
 protected:
  std::string hash_of(const ChildOutcome& outcome) const {
    const std::vector<Json> done = events_of(outcome, "done");
    return done.size() == 1 ? done[0].value("weights_hash", "") : "";
  }

  void expect_stop_and_resume(int signal, int exit_status) {
    const std::string whole =
        hash_of(succeed({"train", "config.toml", "--json", "--set", kSteps, "log.dir=whole"}));
    ASSERT_EQ(whole.size(), 32u);

    const auto child =
        start({"train", "config.toml", "--json", "--set", kSteps, "--set", kSlowLink});
    child->wait_for_output(R"("event":"step","step":2,)", kCliDeadline);
    child->send(signal);
    const ChildOutcome stopped = child->wait(kCliDeadline);
    EXPECT_EQ(stopped.exit_status, exit_status) << stopped.err;
    const std::vector<Json> events = events_of(stopped);
    const std::size_t steps = events_of(stopped, "step").size();
    EXPECT_LT(steps, 12u);
    EXPECT_TRUE(events_of(stopped, "done").empty());
    ASSERT_EQ(events.back().at("event"), "checkpoint");
    EXPECT_EQ(events.back().at("step"), steps);  // of the very step that was finished

    const ChildOutcome resumed =
        succeed({"train", "config.toml", "--json", "--set", kSteps, "--resume", "run"});
    EXPECT_EQ(events_of(resumed, "step").at(0).at("step"), steps + 1);
    EXPECT_EQ(events_of(resumed, "step").size(), 12 - steps);
    EXPECT_EQ(hash_of(resumed), whole);
  }
};

TEST_F(Signals, TerminateSavesAndAResumeEndsAsAnUninterruptedRun) {
  expect_stop_and_resume(SIGTERM, 143);
}

TEST_F(Signals, InterruptDoesTheSameWithItsOwnStatus) {
  expect_stop_and_resume(SIGINT, 130);
}

// A terminal that closes; its shell and the kernel may both say so.
TEST_F(Signals, HangupSavesAndASecondOneWaitsToo) {
  const auto child =
      start({"train", "config.toml", "--json", "--set", "train.steps=100", kSlowLink});
  child->wait_for_output(R"("event":"step","step":2,)", kCliDeadline);
  child->send(SIGHUP);
  child->send(SIGHUP);
  const ChildOutcome stopped = child->wait(kCliDeadline);
  EXPECT_EQ(stopped.exit_status, 129) << stopped.err;
  ASSERT_EQ(events_of(stopped).back().at("event"), "checkpoint");
  EXPECT_EQ(events_of(stopped).back().at("step"), events_of(stopped, "step").size());
  EXPECT_NE(stopped.err.find("continue with: sluice train run/0001"), std::string::npos);
}

// The evaluation of step 2 is cut short; the checkpoint of the step is not.
TEST_F(Signals, AnEvaluationIsNotWaitedFor) {
  const auto child = start({"train", "config.toml", "--json", "--set", kSteps, "--set", kSlowLink,
                            "--set", "memory.place.weight=pinned", "data.eval_fraction=0.5",
                            "train.eval_every=2", "train.micro_batch=1"});
  child->wait_for_output(R"("event":"step","step":2,)", kCliDeadline);
  child->send(SIGTERM);
  const ChildOutcome stopped = child->wait(kCliDeadline);
  EXPECT_EQ(stopped.exit_status, 143) << stopped.err;
  EXPECT_TRUE(events_of(stopped, "eval").empty());
  ASSERT_EQ(events_of(stopped).back().at("event"), "checkpoint");
  EXPECT_EQ(events_of(stopped).back().at("step"), 2);
}

TEST_F(Signals, ASecondOneEndsTheProgramAtOnce) {
  // A step of some eleven seconds.
  const auto child = start({"train", "config.toml", "--json", "--set", "memory.link_latency=1.0",
                            "--set", "memory.place.weight=pinned"});
  child->wait_for_output(R"("event":"plan")", kCliDeadline);
  child->send(SIGINT);
  std::this_thread::sleep_for(milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  child->send(SIGTERM);
  const ChildOutcome stopped = child->wait(kCliDeadline);
  EXPECT_EQ(stopped.exit_status, 143) << stopped.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(8));
  EXPECT_TRUE(events_of(stopped, "step").empty());
  EXPECT_TRUE(events_of(stopped, "checkpoint").empty());
}

}  // namespace
}  // namespace sluice::testing
