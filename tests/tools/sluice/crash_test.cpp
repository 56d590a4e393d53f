// SIGKILL at random moments of a durable run: resumed, it ends with the bits of one that was left
// alone. SLUICE_CRASHES: how many kills (tools/test --crashes N).
#include <array>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "base/rng.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Crash : public CliTest {
 protected:
  static constexpr std::int64_t kSteps = 24;

  Words train(const std::string& run, std::uint64_t variant) const {
    static const std::vector<std::array<std::string, 3>> kPlaces{{"storage", "storage", "storage"},
                                                                 {"pinned", "pinned", "storage"},
                                                                 {"device", "device", "device"},
                                                                 {"storage", "pinned", "pinned"}};
    const auto& places = kPlaces[variant % kPlaces.size()];
    return train_words(
        {"train.steps=" + std::to_string(kSteps), "log.dir=" + run, "checkpoint.mode=durable",
         "checkpoint.every=" + std::to_string(1 + variant % 3), "memory.place.weight=" + places[0],
         "memory.place.gradient=" + places[1], "memory.place.optimizer=" + places[2]});
  }
  // The newest commit that the run reported.
  std::int64_t reported(const std::string& run) const {
    std::int64_t step = 0;
    std::istringstream lines(read_file(path(run + "/latest/events.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line, nullptr, false);
      if (event.is_object() && event.value("event", "") == "checkpoint") {
        step = std::max(step, event.at("step").get<std::int64_t>());
      }
    }
    return step;
  }
};

TEST_F(Crash, AtAnyMomentLosesNoCommitAndChangesNoBit) {
  const char* const asked = std::getenv("SLUICE_CRASHES");
  const std::uint64_t crashes = asked == nullptr ? 5 : std::strtoull(asked, nullptr, 10);
  const auto begin = Clock::now();
  const std::string whole = hash_of(succeed(train("whole", 0)));
  const auto usual = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  ASSERT_EQ(whole.size(), 32u);
  const CounterRng random(11, stream_of("test/crash_cli"));
  std::uint64_t draw = 0, killed = 0;
  for (std::uint64_t chain = 0; killed < crashes; ++chain) {
    const std::string run = "run" + std::to_string(chain);
    SCOPED_TRACE(run);
    bool done = false;
    // Each process of a chain has memory in other places than the one before.
    for (std::uint64_t process = chain; !done; ++process) {
      const bool there = std::filesystem::exists(path(run + "/latest/events.jsonl"));
      const std::int64_t committed = there ? reported(run) : 0;
      Words words = train(run, process);
      if (committed > 0) words.insert(words.end(), {"--resume", run});
      const auto child = start(words);
      const bool kills = killed < crashes && random.below(draw++, 4) > 0;
      if (kills) {
        std::this_thread::sleep_for(std::chrono::microseconds(
            random.below(draw++, static_cast<std::uint64_t>(usual.count()))));
        child->send(SIGKILL);
      }
      const ChildOutcome outcome = child->wait(kCliDeadline);
      if (outcome.signal == SIGKILL) {
        ++killed;
        continue;
      }
      ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
      EXPECT_EQ(hash_of(outcome), whole);
      const std::vector<Json> resume = events_of(outcome, "resume");
      ASSERT_EQ(resume.size(), committed > 0 ? 1u : 0u);
      if (committed > 0) {
        EXPECT_GE(resume[0].at("step").get<std::int64_t>(), committed);
      }
      done = true;
    }
    std::filesystem::remove_all(path(run));
  }
}

}  // namespace
}  // namespace sluice::testing
