// A run in which one thread after the other cannot start, as in a container with a limit of
// threads: it ends at once with an error that names the thread, or with the right bits.
#include "tests/support/thread_faults.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using testing::FailThreadStart;
using testing::Overrides;
using testing::TrainingBench;
using testing::TrainingRecord;
using testing::operator+;

// Every start of a thread in a run, one at a time, fails once and then for ever.
void sweep(const std::string& engine) {
  const TrainingBench bench;
  const config::Config config =
      bench.config("run", testing::tiny_stored_model(2) +
                              Overrides{"memory.backend=host", "memory.storage_engine=" + engine});
  std::uint64_t starts = 0;
  std::string healthy_hash;
  {
    const FailThreadStart none(0);
    healthy_hash = TrainingBench::run(config).weights_hash;
    starts = none.count();
  }
  // Seven lanes, three streams, the verifier and the storage engine's own.
  EXPECT_GE(starts, 12u);
  std::uint64_t refused = 0;
  for (std::uint64_t at = 1; at <= starts; ++at) {
    for (const bool forever : {false, true}) {
      SCOPED_TRACE("start " + std::to_string(at) + (forever ? " and all later ones" : ""));
      std::filesystem::remove_all(config.log.dir);
      const FailThreadStart fault(at, forever);
      try {
        EXPECT_EQ(TrainingBench::run(config).weights_hash, healthy_hash);
      } catch (const ThreadError& error) {
        EXPECT_EQ(error.exit_status(), 3);
        EXPECT_NE(std::string(error.what()).find("could not start"), std::string::npos);
        ++refused;
      }
    }
  }
  // Only the first touch of memory does without the threads that it asked for.
  EXPECT_GE(refused, 2 * 12u);
}

TEST(ThreadFaults, EndTheRunWithAnErrorThatNamesTheThread) {
  sweep("posix");
}

TEST(ThreadFaults, EndItThroughIoUringToo) {
  const std::string reason = offload::io_uring_unavailable_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  sweep("io_uring");
}

}  // namespace
}  // namespace sluice::train
