// The program's standard streams: closed by the caller, full, or written to by a library.
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

class Streams : public CliTest {};

// The host device's memory is a file: without stderr it would get descriptor 2, and each message
// would be written over weights.
TEST_F(Streams, ARunWithoutAnyGivesTheSameWeights) {
  succeed({"train", "config.toml", "--set", "log.dir=open"});
  const ChildOutcome closed =
      run_shell("exec $SLUICE train config.toml --set log.dir=closed <&- >&- 2>&-");
  EXPECT_EQ(closed.exit_status, 0);
  EXPECT_EQ(closed.err, "");
  EXPECT_EQ(logged_hash("closed"), logged_hash("open"));
  int number = 0;
  for (const char* which : {"2>&-", "<&- 2>&-", ">&- 2>&-"}) {
    const std::string name = "closed" + std::to_string(++number);
    EXPECT_EQ(
        run_shell("exec $SLUICE train config.toml --set log.dir=" + name + " " + which).exit_status,
        0)
        << which;
    EXPECT_EQ(logged_hash(name), logged_hash("open")) << which;
  }
}

TEST_F(Streams, EventsForAClosedStdoutAreWrittenIntoNoFile) {
  const ChildOutcome outcome = run_shell("exec $SLUICE train config.toml --json <&- >&-");
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_TRUE(holds(outcome.err, "events cannot be written to stdout; the run is saved"));
  for (const auto& [name, bytes] : snapshot()) {
    if (name.ends_with("events.jsonl")) continue;
    EXPECT_EQ(bytes.find("\"event\":\"step\""), std::string::npos) << name;
  }
  // Nothing was lost: the run goes on to the weights of an undisturbed one.
  succeed({"train", "config.toml", "--resume", "run"});
  succeed({"train", "config.toml", "--set", "log.dir=undisturbed"});
  EXPECT_EQ(logged_hash("run"), logged_hash("undisturbed"));
}

TEST_F(Streams, ALibraryThatPrintsDoesNotDisturbTheEvents) {
  const ChildOutcome outcome =
      run_shell("ONEDNN_VERBOSE=1 exec $SLUICE train config.toml --json --steps 1");
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(events_of(outcome, "done").size(), 1u);
}

TEST_F(Streams, AResultThatCannotBeWrittenIsAnError) {
  for (const char* arguments : {"--help", "--version", "--help-config", "bench --help",
                                "plan config.toml --json", "data config.toml --order"}) {
    const ChildOutcome outcome =
        run_shell("exec $SLUICE " + std::string(arguments) + " > /dev/full");
    EXPECT_EQ(outcome.exit_status, 3) << arguments;
    EXPECT_TRUE(holds(outcome.err, "cannot be written to stdout"));
  }
}

}  // namespace
}  // namespace sluice::testing
