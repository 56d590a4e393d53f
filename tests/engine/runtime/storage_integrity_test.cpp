// A run on storage that returns wrong bytes: a second read mends a wrong read; a wrong block ends
// the run.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "offload/integrity_error.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::runtime {
namespace {

using namespace testing;

class StorageIntegrity : public ::testing::Test {
 protected:
  // Operations that the engine had seen when each step ended, in a healthy run.
  TrainingRecord run(const offload::FaultPlan& plan,
                     std::vector<std::uint64_t>* operations = nullptr) const {
    const offload::StorageEngine* engine = nullptr;
    train::TrainingOptions options;
    options.wrap_storage = [&](std::unique_ptr<offload::StorageEngine> inner) {
      auto faulty = offload::make_faulty_engine(std::move(inner), plan);
      engine = faulty.get();
      return faulty;
    };
    const auto note = [&](const train::StepReport&) {
      if (operations != nullptr) operations->push_back(offload::faulty_engine_operations(*engine));
    };
    return TrainingBench::run(bench_.config("run", tiny_stored_model(3)), options, note);
  }

  // Reads and writes of a step alternate as they like, with long rows of either: a fault of one of
  // them is tried at the operations of the second step until it was met so often.
  static constexpr std::uint64_t kEnough = 6;

  TrainingBench bench_;
};

TEST_F(StorageIntegrity, ARunReportsTheCostOfItsTags) {
  const TrainingRecord record = run({});
  const auto& tags = record.done.at("storage_tags");
  const auto& moved = record.done.at("bytes_moved");
  // Hashes cover every byte of the steps, and the bytes that fill and save the state between them.
  EXPECT_GT(tags.at("hashed_bytes").get<std::uint64_t>(),
            moved.at("storage_read").get<std::uint64_t>() +
                moved.at("storage_write").get<std::uint64_t>());
  EXPECT_GT(tags.at("hash_time_s").get<double>(), 0);
  EXPECT_EQ(tags.at("reread_blocks"), 0);
  for (const train::RunEvent& step : record.steps)
    EXPECT_GT(step.at("tag_time_s").get<double>(), 0);
}

// By the space or by an update that has the bytes at hand, but each byte once.
TEST_F(StorageIntegrity, EveryByteOfAStepIsHashedOnce) {
  for (const Overrides& rule : {Overrides{},
                                {"optimizer.states=split", "train.precision=bf16"},
                                {"optimizer.moments=8bit", "train.precision=bf16"},
                                {"optimizer.name=adafactor"},
                                {"optimizer.placement=next_forward"}}) {
    const auto counts = [&](int steps) {
      const TrainingRecord record = TrainingBench::run(
          bench_.config("run" + std::to_string(steps), tiny_stored_model(steps) + rule));
      const auto& moved = record.done.at("bytes_moved");
      return std::pair(record.done.at("storage_tags").at("hashed_bytes").get<std::uint64_t>(),
                       moved.at("storage_read").get<std::uint64_t>() +
                           moved.at("storage_write").get<std::uint64_t>());
    };
    const auto [hashed, moved] = counts(3);
    const auto [hashed_by_more, moved_by_more] = counts(5);
    EXPECT_GT(moved_by_more, moved);
    EXPECT_EQ(hashed_by_more - hashed, moved_by_more - moved)
        << (rule.empty() ? "the default rule" : rule.front());
  }
}

TEST_F(StorageIntegrity, AReadThatIsWrongOnceIsReadAgainAndTheResultIsTheSame) {
  std::vector<std::uint64_t> ends;
  const TrainingRecord healthy = run({}, &ends);
  std::mutex mutex;
  std::string said;
  set_log_sink([&](LogLevel level, const std::string& line) {
    if (level != LogLevel::kWarning) return;
    const std::lock_guard lock(mutex);
    said += line + "\n";
  });
  std::uint64_t mended = 0;
  for (std::uint64_t n = ends[0]; n < ends[1] && mended < kEnough; ++n) {
    const TrainingRecord record = run({offload::StorageFault::kFlippedRead, n, false});
    EXPECT_EQ(record.weights_hash, healthy.weights_hash) << n;
    EXPECT_EQ(record.losses, healthy.losses) << n;
    mended += record.done.at("storage_tags").at("reread_blocks").get<std::uint64_t>();
  }
  set_log_sink([](LogLevel, const std::string&) {});
  EXPECT_GE(mended, 1u);
  EXPECT_EQ(static_cast<std::uint64_t>(std::count(said.begin(), said.end(), '\n')), mended) << said;
  EXPECT_TRUE(holds(said, "was wrong when it was read from storage"));
}

TEST_F(StorageIntegrity, ABlockThatIsCorruptOnDiskEndsTheRunWithItsPlace) {
  std::vector<std::uint64_t> ends;
  const TrainingRecord healthy = run({}, &ends);
  std::uint64_t found = 0;
  for (std::uint64_t n = ends[0]; n < ends[1] && found < kEnough; ++n) {
    try {
      const TrainingRecord record = run({offload::StorageFault::kFlippedWrite, n, false});
      EXPECT_EQ(record.weights_hash, healthy.weights_hash) << n;  // it was no write
    } catch (const offload::IntegrityError& error) {
      ++found;
      EXPECT_EQ(error.exit_status(), 3);
      for (const char* word : {"block ", " of unit ", "bytes at offset", "/storage/sluice-"}) {
        EXPECT_TRUE(holds(error.what(), word));
      }
    }
  }
  EXPECT_GE(found, 1u);
}

}  // namespace
}  // namespace sluice::runtime
