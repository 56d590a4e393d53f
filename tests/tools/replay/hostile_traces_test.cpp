// Random files that no allocator wrote. `sluice replay` replays each or refuses it in one sentence;
// none ends at an internal check. SLUICE_HOSTILE_TRACES says how many, SLUICE_HOSTILE_SEED from
// which seed on.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "allocator/record/format/memory_trace_csv.hpp"
#include "base/error.hpp"
#include "base/rng.hpp"
#include "base/units.hpp"
#include "tests/support/check_trace.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"
#include "tools/replay/explain_out_of_memory.hpp"
#include "tools/replay/own_policies.hpp"
#include "tools/replay/read_trace.hpp"
#include "tools/replay/replay_report.hpp"
#include "tools/replay/trace_events.hpp"

namespace sluice::replay {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : rng_(seed, stream_of("hostile traces")) {}

  std::uint64_t below(std::uint64_t limit) { return rng_.below(next_++, limit); }
  template <class T, std::size_t kCount>
  const T& one_of(const std::array<T, kCount>& values) {
    return values[below(kCount)];
  }
  std::uint64_t bytes() {
    constexpr std::array kUsual{std::uint64_t{512}, 4 * kKiB,  kMiB,       2 * kMiB,
                                10 * kMiB,          20 * kMiB, 400 * kMiB, kGiB};
    switch (below(8)) {
      case 0:
        return below(4);
      case 1:
        return std::uint64_t{1} << below(64);
      case 2:
        return UINT64_MAX >> below(64);
      case 3:
        return below(std::uint64_t{1} << (1 + below(34)));
      default:
        return one_of(kUsual);
    }
  }
  // Few addresses, so that events meet; some at the limits.
  std::uint64_t address() {
    constexpr std::array kUnits{std::uint64_t{512}, 2 * kMiB, 20 * kMiB};
    switch (below(16)) {
      case 0:
        return std::uint64_t{1} << below(64);
      case 1:
        return UINT64_MAX >> below(64);
      default:
        return below(8) * one_of(kUnits) + (base_ ? std::uint64_t{1} << 44 : 0);
    }
  }
  void set_base(bool base) { base_ = base; }

 private:
  CounterRng rng_;
  std::uint64_t next_ = 0;
  bool base_ = false;
};

std::string hostile_csv(Draw& draw) {
  constexpr std::array<std::string_view, 11> kActions{
      "alloc", "free_requested", "free_completed", "step",        "oom",          "snapshot",
      "flush", "segment_alloc",  "segment_free",   "segment_map", "segment_unmap"};
  constexpr std::array kPools{0, 0, 0, 1, 65535};
  const std::uint64_t action_count = draw.below(2) == 0 ? 7 : kActions.size();
  std::ostringstream text;
  text << record::kMemoryTraceCsvHeader << '\n';
  for (std::uint64_t i = 1 + draw.below(40); i > 0; --i) {
    text << "0," << kActions[draw.below(action_count)] << ',' << draw.below(3) << ','
         << draw.address() << ',' << draw.bytes() << ",external,," << draw.one_of(kPools) << '\n';
  }
  return text.str();
}

std::string hostile_rmm_log(Draw& draw) {
  constexpr std::array<std::string_view, 5> kActions{"allocate", "free", "allocate", "free",
                                                     "allocate failure"};
  constexpr std::array<std::string_view, 3> kStreams{"0", "0x1", "per_thread"};
  std::ostringstream text;
  text << "Thread,Time,Action,Pointer,Size,Stream\n";
  for (std::uint64_t i = 1 + draw.below(40); i > 0; --i) {
    text << "1,00:00:00.1," << draw.one_of(kActions) << ",0x" << std::hex << draw.address()
         << std::dec << ',' << draw.bytes() << ',' << draw.one_of(kStreams) << '\n';
  }
  return text.str();
}

// All that the command does with a file.
void replay_file(const std::string& path, bool is_short_of_memory) {
  const record::MemoryTrace trace = read_trace(path).trace;
  testing::check_trace(trace);
  const SteppedTrace stepped = with_steps(trace);
  ReplayReportOptions options;
  options.timing_rounds = 1;
  options.least_capacity = false;
  if (is_short_of_memory) options.capacity_bytes = kGiB;
  const nlohmann::json event = replay_report(stepped, all_policies(), options);
  EXPECT_FALSE(replay_report_table(event).empty());
  if (is_short_of_memory) static_cast<void>(explain_out_of_memory(stepped, kGiB));
  EXPECT_TRUE(
      plot_replays(stepped, policies_named({"native", "expandable"})).ends_with("</svg>\n"));
  testing::check_trace(record::trace_of(events_of(trace), path, "sluice"));
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

TEST(HostileTraces, AreReplayedOrRefused) {
  const testing::TempDirectory directory;
  const std::string path = (directory.path() / "hostile.csv").string();
  const std::uint64_t count = number_from("SLUICE_HOSTILE_TRACES", 32);
  const std::uint64_t first_seed = number_from("SLUICE_HOSTILE_SEED", 1);
  std::uint64_t refused = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    Draw draw(seed);
    draw.set_base(draw.below(2) == 0);
    const std::string text = seed % 2 == 0 ? hostile_csv(draw) : hostile_rmm_log(draw);
    std::ofstream(path) << text;
    try {
      const std::string refusal =
          testing::refusal_of([&] { replay_file(path, draw.below(2) == 0); });
      if (refusal.empty()) continue;
      ++refused;
      EXPECT_TRUE(testing::mentions(refusal, "hostile.csv'")) << "seed " << seed;
      EXPECT_TRUE(testing::mentions(refusal, "must be")) << "seed " << seed;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << seed << ": " << error.what() << '\n' << text;
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_LT(refused, count);
}

}  // namespace
}  // namespace sluice::replay
