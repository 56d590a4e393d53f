#include "tools/bench/bench_storage.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tests/support/set_variable.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/bench/fio.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/storage_samples.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

bench::StorageBenchOptions small_run(const TempDirectory& directory) {
  bench::StorageBenchOptions options;
  options.directory = directory.path().string();
  options.bytes = 16 * kMiB;
  options.seconds = 0.02;
  options.rounds = 2;
  options.block_bytes = 512 * kKiB;
  options.depth = 8;
  return options;
}

// An executable `fio` with this script, found before any other program.
class FakeFio {
 public:
  explicit FakeFio(const std::string& script) {
    std::ofstream(programs_.file("fio")) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(programs_.file("fio"), std::filesystem::perms::owner_all);
  }

 protected:
  const TempDirectory programs_;

 private:
  const SetVariable path_{"PATH", programs_.path().string() + ":" + std::getenv("PATH")};
};

TEST(StorageBench, GivesEveryFigureAndLeavesNothing) {
  const TempDirectory directory;
  const SetVariable no_fio("PATH", "/nonexistent");
  for (const char* engine : {"auto", "posix"}) {
    bench::StorageBenchOptions options = small_run(directory);
    options.engine = engine;
    const json event = bench::run_storage_bench(options);
    EXPECT_EQ(event.at("event"), "bench");
    EXPECT_EQ(event.at("name"), "storage");
    const json& figures = event.at("figures");
    for (const char* mix : {"first_write", "read", "write", "duplex"}) {
      EXPECT_GT(figures.at(mix + std::string("_gib_per_s")).get<double>(), 0) << mix;
      EXPECT_GT(figures.at(mix + std::string("_cpu_ms_per_gib")).get<double>(), 0) << mix;
    }
    for (const char* figure : {"tag_bf16_gib_per_s", "tag_fp32_gib_per_s", "tag_share_read",
                               "tag_share_write", "tag_share_duplex"}) {
      EXPECT_GT(figures.at(figure).get<double>(), 0) << figure;
    }
    EXPECT_EQ(figures.at("fio"), "not installed");
    EXPECT_EQ(figures.at("ring_bytes"), 4 * kMiB);
    EXPECT_EQ(figures.at("file_bytes"), 16 * kMiB);
    EXPECT_LE(figures.at("ring_huge_bytes").get<std::uint64_t>(), 4 * kMiB);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// A fio that cannot run (no io_uring for it, no direct I/O) costs its own figures only.
TEST(StorageBench, AFailedFioIsReported) {
  const FakeFio fio("exit 7\n");
  const TempDirectory directory;
  const json event = bench::run_storage_bench(small_run(directory));
  EXPECT_GT(event.at("figures").at("read_gib_per_s").get<double>(), 0);
  EXPECT_EQ(event.at("figures").at("fio"), "failed: fio ended with status 7");
}

// A fio that reports its arguments and answers with made-up rates: 512 KiB blocks, 16 in flight,
// are its fastest.
class MadeUpFio : public FakeFio {
 public:
  MadeUpFio()
      : FakeFio(R"(calls=$(dirname "$0")/calls
for word in "$@"; do
  case "$word" in
    --bs=*) bs=${word#*=} ;;
    --iodepth=*) depth=${word#*=} ;;
    --output=*) out=${word#*=} ;;
  esac
done
echo "$@" >> "$calls"
bytes=1000000
[ "$bs" = 524288 ] && [ "$depth" = 16 ] && bytes=3000000
[ "$bs" = 524288 ] && [ "$depth" = 8 ] && bytes=2000000
# Depth 6 is fast from its fourth measurement of a mix on: slow in the three passes of a sweep.
[ "$bs" = 524288 ] && [ "$depth" = 6 ] && {
  mix=${*##*--rw=}
  [ $(grep -c -- "--iodepth=6 .*--rw=$mix" "$calls") -gt 3 ] && bytes=4000000
}
echo '{"jobs":[{"usr_cpu":10.0,"sys_cpu":15.0,"job_runtime":1000,' > "$out"
echo '"read":{"io_bytes":'$bytes',"runtime":1000},"write":{"io_bytes":0,"runtime":0}}]}' >> "$out"
)") {}
  std::vector<std::string> calls() const {
    std::vector<std::string> lines;
    std::ifstream file(programs_.file("calls"));
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
};

std::ptrdiff_t calls_with(const MadeUpFio& fio, const std::string& words) {
  const std::vector<std::string> calls = fio.calls();
  return std::count_if(calls.begin(), calls.end(), [&](const std::string& call) {
    return call.find(words) != std::string::npos;
  });
}

TEST(StorageBench, StandsBesideFioAtItsOwnSettingAndAtItsBest) {
  const TempDirectory directory;
  const MadeUpFio fio;
  const json figures = bench::run_storage_bench(small_run(directory)).at("figures");
  for (const std::string mix : {"read", "write", "duplex"}) {
    const double ours = figures.at(mix + "_gib_per_s").get<double>();
    const double same = figures.at("fio_" + mix + "_gib_per_s").get<double>();
    const double best = figures.at("best_fio_" + mix + "_gib_per_s").get<double>();
    EXPECT_DOUBLE_EQ(same * kGiB, 2e6) << mix;
    EXPECT_DOUBLE_EQ(best * kGiB, 3e6) << mix;
    EXPECT_EQ(figures.at("best_fio_" + mix + "_block_bytes"), 512 * kKiB);
    EXPECT_EQ(figures.at("best_fio_" + mix + "_depth"), 16);
    EXPECT_DOUBLE_EQ(figures.at("default_of_best_" + mix).get<double>(), ours / best) << mix;
    EXPECT_GT(figures.at("ratio_" + mix).get<double>(), 0) << mix;
    EXPECT_TRUE(figures.at("ratio_" + mix + "_interval").is_null()) << "two rounds cannot tell";
    EXPECT_EQ(figures.at("best_fio_" + mix + "_rounds_gib_per_s").size(), 2u);
    EXPECT_NEAR(figures.at("fio_" + mix + "_cpu_ms_per_gib").get<double>(), 0.25 * kGiB / 2e6 * 1e3,
                1);
  }
  EXPECT_EQ(figures.at("fio_sweep").size(), 27u);
  EXPECT_EQ(figures.at("fio_depth"), 8);
  // Nine settings, three passes; then two rounds of the same setting and of the best.
  EXPECT_EQ(fio.calls().size(), 3u * (9 * 3 + 2 * 2));
  EXPECT_EQ(calls_with(fio, "--rw=write"), 31);
  EXPECT_EQ(calls_with(fio, "--bs=524288 --iodepth=16 "), 3 * 5);
  EXPECT_EQ(calls_with(fio, "--fixedbufs=1 --registerfiles=1 "), 93);
  EXPECT_EQ(calls_with(fio, "--scramble_buffers=0 "), 93);
  EXPECT_EQ(calls_with(fio, "--runtime=20ms "), 93);
  const bool huge = figures.at("fio_memory") == "huge pages";
  EXPECT_EQ(calls_with(fio, huge ? "--iomem=mmaphuge " : "--iomem=mmap "), 93);
}

// If the sweep's choice is slower in the rounds than fio at the same setting, that setting is its
// best. A setting that the sweep lacks is added to it.
TEST(StorageBench, FiosBestIsNoSlowerThanFioAtTheSameSetting) {
  const TempDirectory directory;
  const MadeUpFio fio;
  bench::StorageBenchOptions options = small_run(directory);
  options.depth = 6;
  const json figures = bench::run_storage_bench(options).at("figures");
  EXPECT_EQ(figures.at("fio_sweep").size(), 30u);
  EXPECT_EQ(figures.at("fio_depth"), 8);
  for (const std::string mix : {"read", "write", "duplex"}) {
    EXPECT_GE(figures.at("best_fio_" + mix + "_gib_per_s"),
              figures.at("fio_" + mix + "_gib_per_s"));
    EXPECT_LE(figures.at("default_of_best_" + mix), figures.at("ratio_" + mix));
    EXPECT_EQ(figures.at("best_fio_" + mix + "_depth"), 6) << "fast once it is measured in rounds";
  }
}

TEST(StorageBench, WithoutASweepFioRunsAtTheSameSettingOnly) {
  const TempDirectory directory;
  const MadeUpFio fio;
  bench::StorageBenchOptions options = small_run(directory);
  options.sweep = false;
  const json figures = bench::run_storage_bench(options).at("figures");
  EXPECT_EQ(fio.calls().size(), 6u);
  EXPECT_FALSE(figures.contains("fio_sweep"));
  EXPECT_FALSE(figures.contains("best_fio_read_gib_per_s"));
  EXPECT_TRUE(figures.contains("ratio_read"));
}

TEST(StorageBench, BadOptionsAreRefused) {
  const TempDirectory directory;
  for (int i = 0; i < 9; ++i) {
    bench::StorageBenchOptions options = small_run(directory);
    if (i == 0) options.bytes = 1 * kMiB;
    if (i == 1) options.block_bytes = 1000;
    if (i == 2) options.depth = 129;
    if (i == 3) options.seconds = 0;
    if (i == 4) options.directory = directory.file("absent");
    if (i == 5) options.bytes = std::uint64_t{1} << 60;
    if (i == 6) options.depth = 17;  // more in flight than half of the file
    if (i == 7) options.rounds = 0;
    if (i == 8) options.depth = 1;
    EXPECT_THROW(bench::run_storage_bench(options), InputError) << i;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// The shape of fio 3.33's answer, cut to the fields that are read.
constexpr const char* kFioAnswer =
    R"(note: both iodepth >= 1 and synchronous I/O engine are selected
{"fio version":"fio-3.33","jobs":[{"jobname":"sluice","usr_cpu":10.0,"sys_cpu":15.0,"job_runtime":2000,
 "read":{"io_bytes":3000,"runtime":1000},"write":{"io_bytes":1000,"runtime":2000}}]})";

TEST(Fio, HasHugePagesWhereEnoughAreFree) {
  const auto meminfo = [](int free, int reserved) {
    return "MemTotal:       24000000 kB\nHugePages_Total:      32\nHugePages_Free:       " +
           std::to_string(free) + "\nHugePages_Rsvd:        " + std::to_string(reserved) +
           "\nHugepagesize:       2048 kB\n";
  };
  EXPECT_TRUE(bench::huge_pages_free(meminfo(17, 0), 32 * kMiB));
  EXPECT_EQ(bench::fio_buffer_bytes(2 * kMiB, 24), 64 * kMiB);
  EXPECT_EQ(bench::fio_buffer_bytes(2 * kMiB, 16), 32 * kMiB);
  EXPECT_FALSE(bench::huge_pages_free(meminfo(16, 0), 32 * kMiB));
  EXPECT_FALSE(bench::huge_pages_free(meminfo(20, 4), 32 * kMiB));
  EXPECT_FALSE(bench::huge_pages_free(meminfo(0, 0), 1));
  EXPECT_FALSE(bench::huge_pages_free(meminfo(2, 3), 1));
  EXPECT_FALSE(bench::huge_pages_free(std::string(), 1));
}

TEST(StorageSamples, AreComparedRoundByRound) {
  bench::StorageSamples ours;
  bench::StorageSamples others;
  // A machine that is three times as fast in the last round: the ratio does not see it.
  for (const double speed : {1.0, 1.0, 3.0}) {
    ours.add({static_cast<std::uint64_t>(speed * 900), 1.0, 0.5});
    others.add({static_cast<std::uint64_t>(speed * 1000), 1.0, 1.0});
  }
  EXPECT_DOUBLE_EQ(ours.bytes_per_s(), 900);
  EXPECT_DOUBLE_EQ(bench::median(ours.ratios(others)), 0.9);
  EXPECT_DOUBLE_EQ(bench::median(ours.cpu_ratios(others)), 0.5 / 900 * 1000);
}

// Ranks from a table of the sign test: of 7 values the least and the greatest, of 21 the sixth of
// either side, of 100 the fortieth.
TEST(Interval, AroundAMedianIsThatOfTheSignTest) {
  for (const auto& [rounds, rank] :
       std::vector<std::pair<int, int>>{{6, 1}, {7, 1}, {8, 1}, {9, 2}, {21, 6}, {100, 40}}) {
    std::vector<double> values;
    for (int i = rounds; i >= 1; --i) values.push_back(i);
    const auto interval = bench::interval_of_median(values);
    ASSERT_TRUE(interval) << rounds;
    EXPECT_EQ(interval->low, rank) << rounds;
    EXPECT_EQ(interval->high, rounds + 1 - rank) << rounds;
  }
  EXPECT_FALSE(bench::interval_of_median({1, 2, 3, 4, 5}));
  EXPECT_FALSE(bench::interval_of_median({}));
  EXPECT_TRUE(bench::interval_of_median(std::vector<double>(1000, 1.0)));
}

TEST(Fio, ItsAnswerIsRead) {
  const bench::StorageRate rate = bench::parse_fio(kFioAnswer);
  EXPECT_EQ(rate.bytes, 4000u);
  EXPECT_DOUBLE_EQ(rate.bytes_per_s(), 2000.0);
  EXPECT_DOUBLE_EQ(rate.cpu_seconds, 0.5);
}

TEST(Fio, AnythingElseIsAnError) {
  for (const char* text :
       {"", "fio: failed", "{", "{}", "{\"jobs\":[]}", "{\"jobs\":[{\"read\":1}]}"}) {
    EXPECT_THROW(bench::parse_fio(text), Error) << text;
  }
}

}  // namespace
}  // namespace sluice::testing
