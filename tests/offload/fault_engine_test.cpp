// Every operation of a small scenario fails once and for ever, in every way: it ends with the right
// bytes or with a clear error, each callback runs once, and nothing hangs.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/contract/storage_contract.hpp"

namespace sluice::testing {
namespace {

using enum offload::StorageFault;

constexpr std::uint64_t kPieceBytes = 9001;
constexpr std::uint64_t kPieces = 5;
// open + writes + flush + reads
constexpr std::uint64_t kOperations = 1 + kPieces + 1 + kPieces;

struct Outcome {
  std::string error;         // empty: ended well
  bool right_bytes = false;  // the bytes read are the bytes written
  std::uint64_t operations = 0;
  std::uint64_t calls = 0;
  int error_number = 0;
  offload::StorageCounters counters;
};

void run_all(offload::StorageEngine& engine, offload::StorageOp op, offload::StorageFileId file,
             std::byte* data) {
  Ends ends;
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    engine.submit({op, file, i * kPieceBytes, data + i * kPieceBytes, kPieceBytes},
                  ends.callback());
  }
  engine.drain(Deadline::after_seconds(30));
  EXPECT_EQ(ends.ended(), kPieces);
  EXPECT_EQ(ends.threads().count(std::this_thread::get_id()), 0u);
  if (!ends.errors().empty()) std::rethrow_exception(ends.errors().front());
}

Outcome run_scenario(const std::string& kind, const TempDirectory& directory,
                     offload::FaultPlan plan) {
  offload::StorageOptions options;
  options.threads = 2;
  const auto engine =
      offload::make_faulty_engine(offload::make_storage_engine(kind, options), plan);
  AlignedBytes out(kPieces * kPieceBytes);
  AlignedBytes in(kPieces * kPieceBytes);
  out.fill(plan.at_operation);
  Outcome outcome;
  try {
    const auto file =
        engine->open(directory.file("data"), offload::StorageFileMode::kScratch, out.bytes());
    run_all(*engine, offload::StorageOp::kWrite, file, out.at());
    engine->flush(file);
    run_all(*engine, offload::StorageOp::kRead, file, in.at());
    outcome.right_bytes = hash_of(in.at(), in.bytes()) == hash_of(out.at(), out.bytes());
  } catch (const IoError& error) {
    outcome.error = error.what();
    outcome.error_number = error.error_number;
    EXPECT_EQ(error.exit_status(), 3);
    EXPECT_NE(outcome.error.find(directory.file("data")), std::string::npos) << outcome.error;
  }
  outcome.operations = offload::faulty_engine_operations(*engine);
  outcome.calls = offload::faulty_engine_calls(*engine);
  outcome.counters = engine->counters();
  return outcome;
}

class FaultSweep : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string reason =
        GetParam() == "io_uring" ? offload::io_uring_unavailable_reason() : "";
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  Outcome run(const offload::FaultPlan& plan) const {
    return run_scenario(GetParam(), directory_, plan);
  }
  TempDirectory directory_;
};

TEST_P(FaultSweep, AnErrorAnywhereEndsWithIoError) {
  for (const auto fault : {kEio, kEnospc}) {
    for (const bool forever : {false, true}) {
      for (std::uint64_t n = 0; n < kOperations; ++n) {
        const Outcome outcome = run({fault, n, forever});
        EXPECT_NE(outcome.error, "") << "operation " << n;
      }
      const Outcome beyond = run({fault, kOperations, forever});
      EXPECT_EQ(beyond.error, "");
      EXPECT_TRUE(beyond.right_bytes);
      EXPECT_EQ(beyond.operations, kOperations);
    }
  }
}

TEST_P(FaultSweep, AShortTransferOnceIsResumed) {
  for (std::uint64_t n = 0; n < kOperations; ++n) {
    const Outcome outcome = run({kShortTransfer, n, false});
    EXPECT_EQ(outcome.error, "") << "operation " << n;
    EXPECT_TRUE(outcome.right_bytes) << "operation " << n;
    const bool is_transfer = n != 0 && n != kPieces + 1;
    EXPECT_EQ(outcome.operations, kOperations + (is_transfer ? 1 : 0)) << "operation " << n;
    EXPECT_EQ(outcome.counters.reads, kPieces);
    EXPECT_EQ(outcome.counters.writes, kPieces);
    EXPECT_EQ(outcome.counters.read_bytes, kPieces * kPieceBytes);
    EXPECT_EQ(outcome.counters.write_bytes, kPieces * kPieceBytes);
    if (is_transfer) {
      EXPECT_GE(outcome.counters.resubmitted, 1u);
    }
  }
}

TEST_P(FaultSweep, AShortTransferForEverEndsWithIoErrorAfterBoundedTries) {
  for (std::uint64_t n = 0; n < kOperations; ++n) {
    const Outcome outcome = run({kShortTransfer, n, true});
    EXPECT_NE(outcome.error, "") << "operation " << n;
    EXPECT_LT(outcome.operations, 10 * kOperations);
  }
}

TEST_P(FaultSweep, ACallThatIsInterruptedOrShortOnceIsMadeAgain) {
  const std::uint64_t calls = run({}).calls;
  EXPECT_GE(calls, 2 * kPieces);
  for (const auto fault :
       {kCallEagain, kCallEintr, kCallShortByHalf, kCallShortByOne, kCallShortBy511}) {
    for (std::uint64_t n = 0; n < calls; ++n) {
      const Outcome outcome = run({fault, n, false});
      EXPECT_EQ(outcome.error, "") << "call " << n;
      EXPECT_TRUE(outcome.right_bytes) << "call " << n;
      EXPECT_GE(outcome.calls, calls) << "call " << n;
    }
  }
}

TEST_P(FaultSweep, ACallThatIsInterruptedForEverEndsWithItsErrorAfterBoundedTries) {
  for (const auto fault : {kCallEagain, kCallEintr}) {
    const Outcome outcome = run({fault, 3, true});
    EXPECT_EQ(outcome.error_number, fault == kCallEagain ? EAGAIN : EINTR);
    EXPECT_GT(outcome.calls, 1000u);    // kMaxRetries
    EXPECT_LT(outcome.calls, 25'000u);  // of each piece
  }
}

TEST_P(FaultSweep, CallsThatAreShortForEverEndRightOrWithIoErrorAfterBoundedTries) {
  for (const auto fault : {kCallShortByHalf, kCallShortByOne, kCallShortBy511}) {
    const Outcome outcome = run({fault, 2, true});
    EXPECT_TRUE(outcome.right_bytes || !outcome.error.empty());
    EXPECT_LT(outcome.calls, 50'000u);
  }
}

TEST_P(FaultSweep, ACorruptingFaultChangesBytesAndReportsNothing) {
  for (const auto fault : {kFlippedRead, kFlippedWrite, kLostWrite}) {
    for (std::uint64_t n = 0; n < kOperations; ++n) {
      const Outcome outcome = run({fault, n, false});
      const bool meets = fault == kFlippedRead ? n > kPieces + 1 : n >= 1 && n <= kPieces;
      EXPECT_EQ(outcome.error, "") << "operation " << n;
      EXPECT_EQ(outcome.right_bytes, !meets) << "operation " << n;
    }
  }
}

TEST_P(FaultSweep, AFaultWhileTheEngineGoesAwayStillEndsItsRequest) {
  for (const auto fault : {kEio, kShortTransfer}) {
    AlignedBytes data(1 * kMiB);
    Ends ends;
    {
      const auto engine = offload::make_faulty_engine(offload::make_storage_engine(GetParam(), {}),
                                                      {fault, 1, true});
      const auto file =
          engine->open(directory_.file("data"), offload::StorageFileMode::kScratch, 1 * kMiB);
      for (std::uint64_t i = 0; i < 16; ++i) {
        engine->submit(
            {offload::StorageOp::kWrite, file, i * 64 * kKiB, data.at(i * 64 * kKiB), 64 * kKiB},
            ends.callback());
      }
    }
    EXPECT_EQ(ends.ended(), 16u);
    EXPECT_EQ(ends.errors().size(), 16u);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultSweep, ::testing::Values("io_uring", "posix"),
                         [](const auto& engine) { return engine.param; });

TEST(FaultEngine, OperationsOfAnotherEngineAreNotAsked) {
  const auto engine = offload::make_storage_engine("posix", {});
  EXPECT_THROW(offload::faulty_engine_operations(*engine), InternalError);
}

}  // namespace
}  // namespace sluice::testing
