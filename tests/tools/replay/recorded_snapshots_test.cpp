// Snapshots that PyTorch itself recorded in training (data/torch/README.md), through the policies:
// the replicas hold what PyTorch held, and ours keep what they promise.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/replay/own_policies.hpp"
#include "tools/replay/peers/peers.hpp"
#include "tools/replay/read_trace.hpp"
#include "tools/replay/replay_report.hpp"

namespace sluice::testing {
namespace {

const std::string kFolder = SLUICE_TEST_DATA "/torch/";

// What record.py printed: PyTorch's own figures.
nlohmann::json recorded(const std::string& file) {
  std::ifstream lines(kFolder + "recorded.jsonl");
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
    replay::ReadTrace read = replay::read_trace(kFolder + GetParam().file + ".pickle");
    EXPECT_EQ(read.defects.contradictions, 0u);
    EXPECT_EQ(read.defects.unknown_frees, 0u);
    stepped_ = replay::with_steps(std::move(read.trace));
  }
  const record::MemoryTrace& trace() const { return stepped_.trace; }

  nlohmann::json truth_ = recorded(GetParam().file + ".pickle");
  replay::SteppedTrace stepped_;
};

TEST_P(RecordedSnapshot, IsReadAsPyTorchCountsIt) {
  EXPECT_EQ(trace().recorded_peak_reserved_bytes, truth_.at("reserved_bytes.all.peak"));
  EXPECT_EQ(trace().recorded_end_reserved_bytes, truth_.at("reserved_bytes.all.current"));
  EXPECT_EQ(record::peak_live_bytes(trace()), truth_.at("requested_bytes.all.peak"));
  EXPECT_EQ(stepped_.repeats_after != 0, GetParam().repeats);
}

TEST_P(RecordedSnapshot, TheReplicaReservesWhatPyTorchDid) {
  const replay::NamedPolicy replica =
      trace().expandable_segments ? replay::expandable_policy() : replay::native_policy();
  const auto reserved_bytes = truth_.at("reserved_bytes.all.peak").get<double>();
  replay::ReplayRecord record;  // checks that nothing overlaps
  const replay::ReplayOutcome outcome = replay::replay_trace(
      trace(), replica, truth_.at("device_bytes").get<std::uint64_t>(), &record);
  ASSERT_TRUE(outcome.completed);
  EXPECT_NEAR(static_cast<double>(outcome.peak_reserved_bytes), reserved_bytes,
              0.005 * reserved_bytes);
  // The report is told nothing of the device.
  replay::ReplayReportOptions options;
  options.least_capacity = false;
  options.timing_rounds = 1;
  const nlohmann::json policy = replay::replay_report(stepped_, {replica}, options)["policies"][0];
  EXPECT_NEAR(policy.at("peak_reserved_bytes").get<double>(), reserved_bytes,
              0.005 * reserved_bytes);
}

TEST_P(RecordedSnapshot, DynamicHoldsLittleMoreThanIsLive) {
  replay::ReplayRecord record;
  const replay::ReplayOutcome dynamic =
      replay::replay_trace(trace(), replay::dynamic_policy(), UINT64_MAX, &record);
  const replay::ReplayOutcome expandable =
      replay::replay_trace(trace(), replay::expandable_policy());
  ASSERT_TRUE(dynamic.completed);
  EXPECT_LE(dynamic.fragmentation(), 0.03);
  EXPECT_LE(static_cast<double>(dynamic.peak_reserved_bytes),
            1.01 * static_cast<double>(expandable.peak_reserved_bytes));
}

TEST_P(RecordedSnapshot, PlannedHoldsWhatIsLiveAndAsksNobody) {
  const replay::NamedPolicy planned = replay::planned_policy();
  const std::uint64_t live_bytes = record::peak_live_bytes(trace());
  const std::uint64_t enough_bytes = live_bytes + live_bytes / 100;  // 1% more than is live
  replay::ReplayRecord record;
  const replay::ReplayOutcome outcome =
      replay::replay_trace(trace(), planned, enough_bytes, &record);
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
}  // namespace sluice::testing
