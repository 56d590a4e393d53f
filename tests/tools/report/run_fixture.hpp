// A run directory made by hand. Its traces show a step of four units with weights that stream in
// from storage. The real recorder writes them.
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

// The contents of the fixture's traces, for tests to compare with.
inline constexpr int kFixtureUnits = 4;
inline constexpr int kFixtureTracedStep = 7;
inline constexpr std::int64_t kFixtureReadNs = 3'000'000;
inline constexpr std::int64_t kFixtureForwardNs = 1'000'000;

// Records one step that begins at start_ns. Two reads at a time overlap on their lane, and compute
// waits for each. `slower` stretches the reads.
void record_step(TraceRecorder& trace, std::int64_t start_ns, double slower);

}  // namespace sluice::testing
