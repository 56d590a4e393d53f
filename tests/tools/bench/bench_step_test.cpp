#include "tools/bench/bench_step.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tests/support/set_variable.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/bench/own_directory.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

bench::StepBenchOptions small_run(const TempDirectory& directory) {
  bench::StepBenchOptions options;
  options.directory = directory.path().string();
  options.elems = 1 << 20;
  options.shape.hidden = 256;
  options.shape.ffn = 512;
  options.rounds = 5;
  options.threads = 1;
  return options;
}

// Counted by the storage engine, not taken from the schedule.
TEST(StepBench, MovesTheBytesOfEachLayoutAndLeavesNothing) {
  const TempDirectory directory;
  const SetVariable no_fio("PATH", "/nonexistent");
  const json event = bench::run_step_bench(small_run(directory));
  EXPECT_EQ(event.at("name"), "step");
  const json& figures = event.at("figures");
  EXPECT_GE(figures.at("parameters").get<std::int64_t>(), 1 << 20);
  const auto bytes = [&](const char* variant) {
    const json& of = figures.at("variants").at(variant);
    return std::pair(of.at("read_bytes_per_param").get<double>(),
                     of.at("write_bytes_per_param").get<double>());
  };
  EXPECT_EQ(bytes("split"), std::pair(12.0, 12.0));
  EXPECT_EQ(bytes("fp32"), std::pair(12.0, 14.0));
  EXPECT_EQ(bytes("split-bf16"), std::pair(8.0, 8.0));
  // Two codes of a byte, and an fp32 scale of either for each 128 elements.
  EXPECT_EQ(bytes("split-8bit"), std::pair(6.0 + 8.0 / 128, 6.0 + 8.0 / 128));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(StepBench, GivesEveryFigureOfAVariant) {
  const TempDirectory directory;
  const SetVariable no_fio("PATH", "/nonexistent");
  bench::StepBenchOptions options = small_run(directory);
  options.variants = {"split"};
  const json event = bench::run_step_bench(options);
  const json& variants = event.at("figures").at("variants");
  ASSERT_EQ(variants.size(), 1);
  const json& of = variants.at("split");
  for (const char* figure : {"step_s", "io_alone_s", "without_update_s", "update_alone_s",
                             "ratio_io", "ratio_update", "cpu_s", "update_cpu_s", "tag_cpu_s"}) {
    EXPECT_GT(of.at(figure).get<double>(), 0) << figure;
  }
  EXPECT_EQ(of.at("fio"), "not installed");
  EXPECT_TRUE(of.at("bound_by") == "storage" || of.at("bound_by") == "update");
  EXPECT_TRUE(of.at("goals").contains("io") && of.at("goals").contains("cpu"));
  EXPECT_FALSE(of.at("goals").contains("fio"));
}

// The updates are made: a step that only moved the state would leave it as it was.
TEST(StepBench, TheStepUpdatesAndItsTransfersAloneDoNot) {
  const TempDirectory directory;
  bench::OffloadedStep step({1, 256, 512}, "split", "fp32", 1, directory.path().string());
  const std::string first = step.weights_hash();
  step.run_without_update();
  step.run_update_alone();
  EXPECT_EQ(step.weights_hash(), first);
  step.run();
  EXPECT_NE(step.weights_hash(), first);
}

// The yardsticks have the state's own file: the engine leaves it as it is, fio does not.
TEST(StepBench, TransfersAloneLeaveTheStateAndForeignWritesAreRefilled) {
  const TempDirectory directory;
  bench::OffloadedStep step({1, 256, 512}, "split", "8bit", 1, directory.path().string());
  const std::string first = step.weights_hash();
  bench::StorageLoad load;
  load.block_bytes = 64 * kKiB;
  load.depth = 5;
  load.bytes = 3 * step.state_bytes();
  const bench::StagingRing ring(load.depth * load.block_bytes);
  const offload::StorageCounters before = step.engine().counters();
  const bench::StorageRate rate = step.run_transfers_alone(load, ring.data());
  const offload::StorageCounters after = step.engine().counters();
  EXPECT_EQ(after.read_bytes - before.read_bytes, after.write_bytes - before.write_bytes);
  EXPECT_EQ(rate.bytes, 2 * (after.read_bytes - before.read_bytes));
  EXPECT_NEAR(static_cast<double>(rate.bytes), static_cast<double>(load.bytes),
              2.0 * static_cast<double>(load.depth * load.block_bytes));
  EXPECT_EQ(step.weights_hash(), first);

  std::fstream file(step.state_file(), std::ios::in | std::ios::out | std::ios::binary);
  file << std::string(step.state_bytes() / 2, 'x');
  ASSERT_TRUE(file.flush());
  EXPECT_THROW(step.weights_hash(), offload::IntegrityError);
  step.refill_state();
  const std::string refilled = step.weights_hash();
  EXPECT_NE(refilled, first);
  step.run();
  EXPECT_NE(step.weights_hash(), refilled);
}

TEST(OwnDirectory, RemovesOnlyFilesOfAKilledBench) {
  const TempDirectory parent;
  const std::filesystem::path killed = parent.file("sluice_bench_abcdef");
  {
    const bench::OwnDirectory model(parent.path().string());
    std::filesystem::copy(model.path(), killed);
  }
  std::ofstream(killed / "state") << "x";
  // A user's files with similar names.
  std::ofstream(parent.file("sluice_bench_mine.txt")) << "x";
  const std::filesystem::path results = parent.file("sluice_bench_result");
  std::filesystem::create_directory(results);
  std::ofstream(results / ".sluice_bench") << "mine";
  std::filesystem::create_directory(parent.file("sluice_bench_ABCDEF"));
  const bench::OwnDirectory living(parent.path().string());
  const bench::OwnDirectory other(parent.path().string());
  EXPECT_FALSE(std::filesystem::exists(killed));
  for (const std::filesystem::path& kept : std::vector<std::filesystem::path>{
           living.path(), other.path(), parent.path() / "sluice_bench_mine.txt",
           results / ".sluice_bench", parent.path() / "sluice_bench_ABCDEF"}) {
    EXPECT_TRUE(std::filesystem::exists(kept)) << kept;
  }
}

TEST(StepBench, BadOptionsAreRefused) {
  const TempDirectory directory;
  for (int i = 0; i < 6; ++i) {
    bench::StepBenchOptions options = small_run(directory);
    if (i == 0) options.rounds = 4;
    if (i == 1) options.elems = 0;
    if (i == 2) options.threads = -1;
    if (i == 3) options.variants = {"none"};
    if (i == 4) options.directory = directory.file("missing");
    if (i == 5) options.elems = (std::int64_t{1} << 36) + 1;
    EXPECT_THROW(bench::run_step_bench(options), InputError) << i;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace sluice::testing
