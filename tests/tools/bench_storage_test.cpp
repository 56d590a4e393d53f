#include "tools/bench/bench_storage.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/bench/fio.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

StorageBenchOptions small_run(const TempDirectory& directory) {
  StorageBenchOptions options;
  options.directory = directory.path().string();
  options.bytes = 16 * kMiB;
  options.seconds = 0.05;
  return options;
}

// No program is found while it lives.
class NoPrograms {
 public:
  NoPrograms() : before_(std::getenv("PATH")) { ::setenv("PATH", "/nonexistent", 1); }
  ~NoPrograms() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST(StorageBench, GivesEveryFigureAndLeavesNothing) {
  const TempDirectory directory;
  const NoPrograms no_fio;
  for (const char* engine : {"auto", "posix"}) {
    StorageBenchOptions options = small_run(directory);
    options.engine = engine;
    const json event = run_storage_bench(options);
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
    EXPECT_LE(figures.at("ring_bytes").get<std::uint64_t>(), 8 * kMiB);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// A fio that cannot run (no io_uring for it, no direct I/O) costs its own figures only.
TEST(StorageBench, AFioThatFailsIsSaid) {
  const TempDirectory programs;
  std::ofstream(programs.file("fio")) << "#!/bin/sh\nexit 7\n";
  std::filesystem::permissions(programs.file("fio"), std::filesystem::perms::owner_all);
  const TempDirectory directory;
  const std::string before = std::getenv("PATH");
  ::setenv("PATH", (programs.path().string() + ":" + before).c_str(), 1);
  const json event = run_storage_bench(small_run(directory));
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_GT(event.at("figures").at("read_gib_per_s").get<double>(), 0);
  EXPECT_EQ(event.at("figures").at("fio"), "failed: fio ended with status 7");
}

TEST(StorageBench, BadOptionsAreRefused) {
  const TempDirectory directory;
  for (int i = 0; i < 6; ++i) {
    StorageBenchOptions options = small_run(directory);
    if (i == 0) options.bytes = 1 * kMiB;
    if (i == 1) options.block_bytes = 1000;
    if (i == 2) options.depth = 17;
    if (i == 3) options.seconds = 0;
    if (i == 4) options.directory = directory.file("absent");
    if (i == 5) options.bytes = std::uint64_t{1} << 60;
    EXPECT_THROW(run_storage_bench(options), InputError) << i;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// The shape of fio 3.33's answer, cut to what is read.
constexpr const char* kFioAnswer =
    R"(note: both iodepth >= 1 and synchronous I/O engine are selected
{"fio version":"fio-3.33","jobs":[{"jobname":"sluice","usr_cpu":10.0,"sys_cpu":15.0,"job_runtime":2000,
 "read":{"io_bytes":3000,"runtime":1000},"write":{"io_bytes":1000,"runtime":2000}}]})";

TEST(Fio, ItsAnswerIsRead) {
  const StorageRate rate = parse_fio(kFioAnswer);
  EXPECT_EQ(rate.bytes, 4000u);
  EXPECT_DOUBLE_EQ(rate.bytes_per_s(), 2000.0);
  EXPECT_DOUBLE_EQ(rate.cpu_seconds, 0.5);
}

TEST(Fio, AnythingElseIsAnError) {
  for (const char* text :
       {"", "fio: failed", "{", "{}", "{\"jobs\":[]}", "{\"jobs\":[{\"read\":1}]}"}) {
    EXPECT_THROW(parse_fio(text), Error) << text;
  }
}

}  // namespace
}  // namespace sluice::testing
