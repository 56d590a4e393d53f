#include "tools/bench/bench_copy.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "device/host/host_device.hpp"
#include "tools/bench/bench_table.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kBytes = 64 * kMiB;

std::unique_ptr<device::Device> device(double link_bytes_per_s = 0) {
  device::HostDeviceOptions options;
  options.capacity_bytes = 2 * kBytes + 64 * kMiB;
  options.link_bandwidth_bytes_per_s = link_bytes_per_s;
  return device::make_host_device(options);
}

TEST(BenchCopy, SeesTheLinkThatTheDeviceHas) {
  // A tenth of the speed of memory anywhere, so that only the link decides; both ways at once it
  // carries twice as much.
  constexpr double kLink = 0.5;
  const auto slow = device(kLink * static_cast<double>(kGiB));
  const nlohmann::json event = run_copy_bench({slow.get(), kBytes, 7});
  const nlohmann::json& copies = event["figures"]["copies"];
  for (const std::string piece : {"1MiB", "16MiB", "64MiB"}) {
    EXPECT_LE(copies[piece]["to_device_gib_per_s"].get<double>(), kLink * 1.01) << piece;
    EXPECT_LE(copies[piece]["to_host_gib_per_s"].get<double>(), kLink * 1.01) << piece;
    EXPECT_LE(copies[piece]["duplex_gib_per_s"].get<double>(), 2 * kLink * 1.01) << piece;
  }
  // A long piece: each end of a copy is woken late on a busy machine.
  EXPECT_GT(copies["64MiB"]["duplex_gib_per_s"].get<double>(), kLink * 1.01);
}

TEST(BenchCopy, FreesAllItsMemory) {
  const auto here = device();
  const nlohmann::json event = run_copy_bench({here.get(), kBytes, 7});
  EXPECT_EQ(here->counters().live_bytes, 0u);
  EXPECT_EQ(here->counters().peak_bytes, 2 * kBytes + 64 * kMiB);
  for (const std::string handle : {"2MiB", "32MiB", "64MiB"}) {
    EXPECT_GT(event["figures"]["handles"][handle]["map_us"].get<double>(), 0) << handle;
  }
  EXPECT_NE(bench_table(event).find("64MiB"), std::string::npos);
}

TEST(BenchCopy, RefusesOptionsThatItCannotMeasure) {
  const auto here = device();
  EXPECT_THROW(run_copy_bench({here.get(), kBytes - 1, 7}), InputError);
  EXPECT_THROW(run_copy_bench({here.get(), 0, 7}), InputError);
  EXPECT_THROW(run_copy_bench({here.get(), kBytes, 6}), InputError);
}

}  // namespace
}  // namespace sluice::bench
