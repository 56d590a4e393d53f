// The program where the system refuses threads: RLIMIT_NPROC, as a container's limit of pids.
#include <unistd.h>

#include <filesystem>

#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

using ThreadLimit = CliTest;

// Few threads: the run ends by itself, and says which thread it could not start. Enough: it
// succeeds. The limit counts the threads of a user, and root has none: the program runs as a user
// that nothing else runs as.
TEST_F(ThreadLimit, EndsTheRunWithAnErrorThatNamesTheThread) {
  const char* const setpriv = "/usr/bin/setpriv";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become a user without threads";
  if (!fs::exists(setpriv)) GTEST_SKIP() << "setpriv (util-linux) is not installed";
  const std::string user = std::to_string(60000 + ::getpid() % 5000);
  fs::permissions(path(), fs::perms::all);
  for (const auto& entry : fs::directory_iterator(path())) {
    fs::permissions(entry.path(), fs::perms::others_read, fs::perm_options::add);
  }
  constexpr int kEnough = 64;
  bool refused = false;
  for (const int limit : {3, 6, 9, 12, kEnough}) {
    SCOPED_TRACE("limit " + std::to_string(limit));
    const std::string run = "run-" + std::to_string(limit);
    const std::string shell = "ulimit -u " + std::to_string(limit) + "; exec " + setpriv +
                              " --reuid " + user + " --clear-groups " + SLUICE_PROGRAM +
                              " train config.toml --set log.dir=" + run;
    ChildProcess child({"/bin/bash", "-c", shell}, path(), {});
    const ChildOutcome outcome = child.wait(kCliDeadline);
    if (outcome.exit_status == 126) GTEST_SKIP() << "that user cannot run the program";
    if (limit == kEnough) {
      EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    }
    if (outcome.exit_status == 0) continue;
    refused = true;
    EXPECT_EQ(outcome.exit_status, 3) << outcome.err;
    EXPECT_TRUE(holds(outcome.err, "could not start"));
  }
  EXPECT_TRUE(refused);
}

}  // namespace
}  // namespace sluice::testing
