// Runs of keys against a list of every element's key, and the units that a GPU's warps take.
#include "kernels/key_runs.hpp"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels {
namespace {

// A segment that begins and ends anywhere in its rows, and the key of each of its elements.
struct Listed {
  ParameterSegment segment;
  std::map<std::int64_t, std::uint64_t> keys;
};

Listed random_segment(std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/key-runs"));
  std::uint64_t next = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(next++, bound); };
  const auto cols = static_cast<std::int64_t>(1 + below(300));
  const auto skip = static_cast<std::int64_t>(below(2) == 0 ? below(4) : below(999));
  const auto first = static_cast<std::int64_t>(below(2000));
  const auto count = static_cast<std::int64_t>(1 + below(1500));
  const auto begin = static_cast<std::int64_t>(below(500));
  const std::uint64_t key = below(5000);
  Listed listed;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = (first + i) / cols, col = (first + i) % cols;
    listed.keys[begin + i] = key + static_cast<std::uint64_t>(row * (cols + skip) + col);
  }
  listed.segment.begin = begin;
  listed.segment.end = begin + count;
  listed.segment.first_key = listed.keys.at(begin);
  listed.segment.runs = {cols, skip, first % cols};
  return listed;
}

TEST(KeyRuns, AreTheKeysOfEachElement) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto [segment, keys] = random_segment(seed);
    std::map<std::int64_t, std::uint64_t> of_runs;
    for (std::int64_t number = 0; number < key_run_count(segment); ++number) {
      const KeyRun run = key_run(segment, number);
      EXPECT_LT(run.begin, run.end);
      for (std::int64_t at = run.begin; at < run.end; ++at) {
        EXPECT_EQ(key_run_number(segment, at), number);
        of_runs[at] = run.first_key + static_cast<std::uint64_t>(at - run.begin);
      }
    }
    EXPECT_EQ(of_runs, keys) << seed;
    for (std::int64_t from = segment.begin; from < segment.end; from += 7) {
      const ParameterSegment rest = segment_from(segment, from);
      for (std::int64_t at = from; at < rest.end; at += 5) {
        EXPECT_EQ(key_at(rest, at), keys.at(at)) << seed;
      }
    }
  }
}

TEST(KeyRuns, UnitsHaveEachElementOnceAndWholeBlocksOfKeys) {
  constexpr std::int64_t kElems = 128;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto [segment, keys] = random_segment(seed);
    if (seed % 5 == 0) {
      segment.runs = {};
      for (auto& [at, key] : keys) {
        key = segment.first_key + static_cast<std::uint64_t>(at - segment.begin);
      }
    }
    std::map<std::int64_t, std::uint64_t> of_units;
    const std::int64_t units = key_run_count(segment) * units_of_key_run(segment, kElems);
    for (std::int64_t number = 0; number < units; ++number) {
      const KeyUnit unit = key_unit(segment, kElems, number);
      if (unit.is_empty()) continue;
      const std::uint64_t base_key =
          unit.run.first_key + static_cast<std::uint64_t>(unit.base - unit.run.begin);
      EXPECT_EQ(base_key % kElems, 0u) << seed;
      const std::int64_t end = std::min(unit.base + kElems, unit.run.end);
      for (std::int64_t at = std::max(unit.base, unit.run.begin); at < end; ++at) {
        const std::uint64_t key = base_key + static_cast<std::uint64_t>(at - unit.base);
        EXPECT_TRUE(of_units.emplace(at, key).second) << seed;
      }
    }
    EXPECT_EQ(of_units, keys) << seed;
  }
}

}  // namespace
}  // namespace sluice::kernels
