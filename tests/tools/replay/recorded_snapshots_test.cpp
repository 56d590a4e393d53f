// Replays snapshots that PyTorch itself recorded in training (tests/data/README.md). The replicas
// reserve as much as PyTorch did, and our own policies keep their promises.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/replay/own_policies.hpp"
#include "tools/replay/peers/peers.hpp"
#include "tools/replay/read_trace.hpp"
#include "tools/replay/replay_report.hpp"

namespace sluice::replay {
namespace {

const std::string kSnapshots = SLUICE_TEST_SNAPSHOTS "/";

// PyTorch's own figures, as record.py printed them.
nlohmann::json recorded(const std::string& file) {
  std::ifstream lines(SLUICE_TEST_DATA "/recorded.jsonl");
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json one = nlohmann::json::parse(line);
    if (one.at("file") == file) return one;
  }
  ADD_FAILURE() << "recorded.jsonl says nothing of " << file;
  return {};
}

struct Snapshot {
  std::string file;
  bool repeats = true;
};

class RecordedSnapshot : public ::testing::TestWithParam<Snapshot> {
 protected:
  RecordedSnapshot() {
    ReadTrace read = read_trace(kSnapshots + GetParam().file + ".pickle");
    EXPECT_EQ(read.defects.contradictions, 0u);
    EXPECT_EQ(read.defects.unknown_frees, 0u);
    stepped_ = with_steps(std::move(read.trace));
  }
  const record::MemoryTrace& trace() const { return stepped_.trace; }

  nlohmann::json truth_ = recorded(GetParam().file + ".pickle");
  SteppedTrace stepped_;
};

TEST_P(RecordedSnapshot, IsReadWithTheFiguresOfPyTorch) {
  EXPECT_EQ(trace().recorded_peak_reserved_bytes, truth_.at("reserved_bytes.all.peak"));
  EXPECT_EQ(trace().recorded_end_reserved_bytes, truth_.at("reserved_bytes.all.current"));
  EXPECT_EQ(record::peak_live_bytes(trace()), truth_.at("requested_bytes.all.peak"));
  EXPECT_EQ(stepped_.repeats_after != 0, GetParam().repeats);
}

TEST_P(RecordedSnapshot, TheReplicaReservesAsMuchAsPyTorch) {
  const NamedPolicy replica = trace().expandable_segments ? expandable_policy() : native_policy();
  const auto reserved_bytes = truth_.at("reserved_bytes.all.peak").get<double>();
  ReplayRecord record;  // checks that nothing overlaps
  const ReplayOutcome outcome =
      replay_trace(trace(), replica, truth_.at("device_bytes").get<std::uint64_t>(), &record);
  ASSERT_TRUE(outcome.completed);
  EXPECT_NEAR(static_cast<double>(outcome.peak_reserved_bytes), reserved_bytes,
              0.005 * reserved_bytes);
  // The report does not know the device.
  ReplayReportOptions options;
  options.least_capacity = false;
  options.timing_rounds = 1;
  const nlohmann::json policy = replay_report(stepped_, {replica}, options)["policies"][0];
  EXPECT_NEAR(policy.at("peak_reserved_bytes").get<double>(), reserved_bytes,
              0.005 * reserved_bytes);
}

TEST_P(RecordedSnapshot, DynamicHoldsLittleMoreThanIsLive) {
  ReplayRecord record;
  const ReplayOutcome dynamic = replay_trace(trace(), dynamic_policy(), UINT64_MAX, &record);
  const ReplayOutcome expandable = replay_trace(trace(), expandable_policy());
  ASSERT_TRUE(dynamic.completed);
  EXPECT_LE(dynamic.fragmentation(), 0.03);
  EXPECT_LE(static_cast<double>(dynamic.peak_reserved_bytes),
            1.01 * static_cast<double>(expandable.peak_reserved_bytes));
}

TEST_P(RecordedSnapshot, PlannedHoldsTheLiveBytesAndNeverSynchronises) {
  const NamedPolicy planned = planned_policy();
  const std::uint64_t live_bytes = record::peak_live_bytes(trace());
  const std::uint64_t enough_bytes = live_bytes + live_bytes / 100;  // 1% more than is live
  ReplayRecord record;
  const ReplayOutcome outcome = replay_trace(trace(), planned, enough_bytes, &record);
  EXPECT_TRUE(outcome.completed);
  if (!GetParam().repeats) return;
  ASSERT_TRUE(outcome.was_steady);
  EXPECT_LE(outcome.fragmentation(), 0.01);
  EXPECT_EQ(outcome.steady_counters.flushes, 0u);
  EXPECT_EQ(outcome.steady_counters.remaps, 0u);
  EXPECT_EQ(outcome.steady_counters.synchronisations, 0u);
  EXPECT_GT(outcome.steady_counters.planned_count, 100 * outcome.steady_counters.fallback_count);
}

INSTANTIATE_TEST_SUITE_P(Torch26, RecordedSnapshot,
                         ::testing::Values(Snapshot{"gpt_amp"},
                                           Snapshot{"llama_accumulate_prefetch"},
                                           Snapshot{"llama_checkpointing_expandable"},
                                           Snapshot{"llama_lengths_retries", false},
                                           Snapshot{"resnet"}),
                         [](const auto& one) { return one.param.file; });

}  // namespace
}  // namespace sluice::replay
