#include "tools/bench/bench_allocator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/bench/allocation_mix.hpp"
#include "tools/bench/bench_table.hpp"

namespace sluice::bench {
namespace {

AllocatorBenchOptions short_run() {
  AllocatorBenchOptions options;
  options.threads = 2;
  options.seconds = 1e-4;
  options.rounds = 2;
  options.layers = 2;
  return options;
}

TEST(BenchAllocator, SaysAllFiguresOfEveryMix) {
  const nlohmann::json event = run_allocator_bench(short_run());
  EXPECT_EQ(event.at("event"), "bench");
  EXPECT_EQ(event.at("name"), "allocator");
  const nlohmann::json& figures = event.at("figures");
  EXPECT_EQ(figures.at("threads"), 2);
  EXPECT_EQ(figures.at("rounds"), 2);
  for (const std::string mix : {"small", "large", "step"}) {
    std::vector<std::string> positive{mix + "_operations"};
    for (const std::string policy : {"native_", "dynamic_", "planned_"}) {
      for (const std::string figure : {"_ns", "_p50_ns", "_p99_ns", "_p999_ns", "_max_ns"}) {
        positive.push_back(policy + mix + figure);
      }
    }
    for (const std::string teams : {"own_streams_", "same_stream_"}) {
      positive.push_back(teams + mix + "_ops_per_s");
      positive.push_back(teams + mix + "_scaling");
    }
    positive.push_back("native_locked_" + mix + "_ns");
    for (const std::string own : {"dynamic_", "planned_"}) {
      positive.push_back(own + mix + "_ratio");
      positive.push_back(own + mix + "_locked_ratio");
    }
    for (const std::string& name : positive) {
      ASSERT_TRUE(figures.contains(name)) << name;
      EXPECT_GT(figures.at(name), 0.0) << name;
      EXPECT_TRUE(std::isfinite(figures.at(name).get<double>())) << name;
    }
    // A difference of two times, so of either sign in so short a run.
    EXPECT_TRUE(std::isfinite(figures.at("record_" + mix + "_ns_per_event").get<double>()));
    // The timed requests are those of the names: hits, unless a thread's cache holds the free
    // memory in blocks of other sizes (often, in so small a model), and no call out of step.
    EXPECT_GE(figures.at("dynamic_" + mix + "_hit_share"), 0.75);
    EXPECT_EQ(figures.at("planned_" + mix + "_share"), 1.0);
    EXPECT_NE(bench_table(event).find(mix), std::string::npos);
  }
}

TEST(BenchAllocator, MixesFreeAllThatTheyAllocateAndHoldTheSizesTheySay) {
  const std::vector<AllocationMix> mixes = dense_mixes(2);
  ASSERT_EQ(mixes.size(), 3U);
  std::vector<std::uint64_t> counts;
  for (const AllocationMix& mix : mixes) {
    std::vector<bool> is_held(mix.trace.allocations.size(), false);
    std::uint64_t allocation_count = 0;
    for (const AllocationMix::Operation operation : mix.operations) {
      ASSERT_NE(is_held.at(operation.allocation), operation.is_alloc);
      is_held[operation.allocation] = operation.is_alloc;
      if (!operation.is_alloc) continue;
      ++allocation_count;
      const std::uint64_t bytes = mix.trace.allocations[operation.allocation].bytes;
      EXPECT_TRUE(mix.name != "small" || (bytes >= 512 && bytes <= kMiB)) << bytes;
      EXPECT_TRUE(mix.name != "large" || (bytes > kMiB && bytes <= kGiB)) << bytes;
    }
    for (const bool held : is_held) EXPECT_FALSE(held);
    EXPECT_EQ(mix.operations.size(), 2 * allocation_count);
    counts.push_back(allocation_count);
  }
  EXPECT_GE(counts[2], counts[0] + counts[1]);
  EXPECT_TRUE(mixes[0].resident.empty());
  EXPECT_FALSE(mixes[2].resident.empty());
}

TEST(BenchAllocator, RefusesOptionsThatItCannotMeasure) {
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    AllocatorBenchOptions options = short_run();
    options.seconds = seconds;
    EXPECT_THROW(run_allocator_bench(options), InputError);
  }
  AllocatorBenchOptions options = short_run();
  options.threads = -1;
  EXPECT_THROW(run_allocator_bench(options), InputError);
  options = short_run();
  options.rounds = 0;
  EXPECT_THROW(run_allocator_bench(options), InputError);
}

}  // namespace
}  // namespace sluice::bench
