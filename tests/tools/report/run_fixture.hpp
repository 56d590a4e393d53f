// A run directory made by hand: a step of four units whose weights stream in from storage, traced
// by the real recorder.
#pragma once

#include <filesystem>
#include <string>

#include "base/trace.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {

class RunFixture {
 public:
  RunFixture();

  const std::filesystem::path& path() const { return directory_.path(); }
  void write(const std::string& name, const std::string& text) const;

 private:
  testing::TempDirectory directory_;
};

// What the fixture's run trace holds, for tests to compare against.
inline constexpr int kFixtureUnits = 4;
inline constexpr std::int64_t kFixtureReadNs = 3'000'000;
inline constexpr std::int64_t kFixtureForwardNs = 1'000'000;

// One step: reads overlap two deep on their lane; compute waits for each. Times start at start_ns;
// `slower` stretches the reads.
void record_step(TraceRecorder& trace, std::int64_t start_ns, double slower);

}  // namespace sluice::testing
