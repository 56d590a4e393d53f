// Replays traces through all policies: the promises of our own, and the figures of the report.
#include "tools/replay/replay_report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "allocator/record/format/torch_snapshot.hpp"
#include "allocator/record/trace_from_snapshot.hpp"
#include "base/error.hpp"
#include "tests/support/snapshot_sums.hpp"
#include "tests/support/thrown.hpp"
#include "tools/replay/generated/trace_generator.hpp"
#include "tools/replay/own_policies.hpp"
#include "tools/replay/peers/peers.hpp"
#include "tools/replay/trace_events.hpp"

namespace sluice::replay {
namespace {

record::MemoryTrace generated(const std::string& family, std::uint64_t seed) {
  return generate_trace({.family = family, .seed = seed});
}

struct Generated {
  std::string family;
  std::uint64_t seed;
};

class OwnPolicies : public ::testing::TestWithParam<Generated> {
 protected:
  record::MemoryTrace trace_ = generated(GetParam().family, GetParam().seed);
};

TEST_P(OwnPolicies, DynamicHoldsLittleMoreThanIsLiveAndNeverMuchMoreThanExpandable) {
  ReplayRecord record;  // checks that nothing overlaps
  const ReplayOutcome dynamic = replay_trace(trace_, dynamic_policy(), UINT64_MAX, &record);
  const ReplayOutcome expandable = replay_trace(trace_, expandable_policy());
  ASSERT_TRUE(dynamic.completed);
  EXPECT_LE(dynamic.fragmentation(), 0.03);
  EXPECT_LE(static_cast<double>(dynamic.peak_reserved_bytes),
            1.01 * static_cast<double>(expandable.peak_reserved_bytes));
  EXPECT_EQ(dynamic.counters.synchronisations, 2 * dynamic.counters.flushes);
  EXPECT_EQ(record.placed.size(), trace_.allocations.size());
}

TEST_P(OwnPolicies, PlannedHoldsTheLiveBytesAndNeverSynchronises) {
  ReplayRecord record;
  const ReplayOutcome planned =
      replay_trace(trace_, planned_policy(packing::PackingEffort::kThorough), UINT64_MAX, &record);
  ASSERT_TRUE(planned.was_steady);
  EXPECT_LE(planned.fragmentation(), 0.02);
  EXPECT_EQ(planned.steady_counters.remaps, 0u);
  EXPECT_EQ(planned.steady_counters.flushes, 0u);
  EXPECT_EQ(planned.steady_counters.synchronisations, 0u);
  EXPECT_GT(planned.steady_counters.planned_count, 100 * planned.steady_counters.fallback_count);
}

INSTANTIATE_TEST_SUITE_P(Generated, OwnPolicies,
                         ::testing::Values(Generated{"dense", 2}, Generated{"zero3", 5},
                                           Generated{"recompute", 5}, Generated{"pipeline", 2},
                                           Generated{"lora", 1}),
                         [](const auto& one) { return one.param.family; });

TEST(ReplayReport, NamesTheKnownPolicies) {
  EXPECT_EQ(policies_named({}).size(), 4u);
  EXPECT_EQ(policies_named({"planned", "native"}).front().name, "native");
  const std::string message =
      testing::message_of<InputError>([&] { policies_named({"jemalloc"}); });
  EXPECT_NE(message.find("native, expandable, dynamic, planned"), std::string::npos);
}

TEST(ReplayReport, ScoresPlansByWholeIterations) {
  record::MemoryTrace trace = generated("lora", 1);
  const ReplayOutcome planned = replay_trace(trace, planned_policy(packing::PackingEffort::kQuick));
  ASSERT_TRUE(planned.was_steady);
  ReplayReportOptions options;
  options.least_capacity = false;
  options.timing_rounds = 1;
  const auto report = [&] {
    return replay_report(with_steps(trace), policies_named({"planned"}), options)["policies"][0];
  };
  EXPECT_LE(report()["fragmentation"], 0.01);
  // The trace ends in the plan's second step, before much is held.
  trace.operations.resize(planned.steady_from + 20);
  EXPECT_FALSE(report().contains("fragmentation"));
  EXPECT_TRUE(report().contains("peak_reserved_bytes"));
}

TEST(ReplayReport, ReportsFitAndLeastCapacity) {
  record::MemoryTrace trace;
  trace.source = "by hand";
  trace.allocations.assign(3, {.bytes = std::uint64_t{12} << 20});
  using enum record::TraceAction;
  trace.operations = {{kAlloc, 0}, {kAlloc, 1}, {kFree, 0}, {kAlloc, 2}, {kFree, 1}, {kFree, 2}};
  ReplayReportOptions options;
  options.capacity_bytes = std::uint64_t{22} << 20;
  const SteppedTrace stepped = with_steps(trace);
  EXPECT_EQ(stepped.source, "none");
  nlohmann::json event = replay_report(stepped, policies_named({"native", "dynamic"}), options);
  EXPECT_EQ(event["peak_live_bytes"], 24 << 20);
  EXPECT_EQ(event["policies"][0]["least_capacity_bytes"], 24 << 20);
  EXPECT_EQ(event["policies"][1]["peak_reserved_bytes"], 24 << 20);
  EXPECT_FALSE(event["policies"][1]["fits"].get<bool>());
  options.capacity_bytes = std::uint64_t{24} << 20;
  event = replay_report(stepped, policies_named({"dynamic"}), options);
  EXPECT_TRUE(event["policies"][0]["fits"].get<bool>());
  EXPECT_TRUE(testing::mentions(replay_report_table(event), "dynamic"));
}

// The memory that a record begins with must fit, too, under every policy.
TEST(ReplayReport, MemoryHeldAtTheStartMustFit) {
  record::MemoryTrace trace;
  constexpr std::uint64_t kAddress = std::uint64_t{1} << 40, kHeld = std::uint64_t{64} << 20;
  trace.allocations.resize(1);
  trace.allocations[0].bytes = kHeld;
  trace.allocations[0].address = kAddress;
  trace.initial_segments = {{.address = kAddress,
                             .bytes = kHeld,
                             .blocks = {{kAddress, kHeld, kHeld, record::BlockState::kAllocated}}}};
  trace.initial_ids = {{0}};
  for (const NamedPolicy& policy : all_policies()) {
    EXPECT_FALSE(replay_trace(trace, policy, std::uint64_t{8} << 20).completed) << policy.name;
    EXPECT_TRUE(replay_trace(trace, policy).completed) << policy.name;
  }
}

// The events of a generated trace read back as the same operations.
TEST(ReplayReport, EventsOfATraceReadBackAsTheTrace) {
  record::MemoryTrace trace = generated("rlhf", 3);  // flushes
  ASSERT_TRUE(std::any_of(trace.operations.begin(), trace.operations.end(), [](const auto& one) {
    return one.action == record::TraceAction::kFlush;
  }));
  for (std::size_t i = 0; i < trace.allocations.size(); i += 3) {
    trace.allocations[i].pool = i % 2 == 0 ? UINT64_MAX : 7;
  }
  const record::MemoryTrace again = record::trace_of(events_of(trace), trace.source, "sluice");
  ASSERT_EQ(again.operations.size(), trace.operations.size());
  std::map<std::uint64_t, std::set<std::uint64_t>> pools;  // numbered anew
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    ASSERT_EQ(again.operations[i].action, trace.operations[i].action) << i;
    if (trace.operations[i].action != record::TraceAction::kAlloc) continue;
    pools[trace.allocations[trace.operations[i].allocation].pool].insert(
        again.allocations[again.operations[i].allocation].pool);
  }
  EXPECT_EQ(record::peak_live_bytes(again), record::peak_live_bytes(trace));
  using Numbers = std::set<std::uint64_t>;
  ASSERT_EQ(pools.size(), 3u);
  EXPECT_EQ(pools[0], Numbers{0});
  EXPECT_EQ(pools[7].size(), 1u);
  EXPECT_EQ(pools[UINT64_MAX].size(), 1u);
  EXPECT_NE(pools[7], pools[UINT64_MAX]);
}

// The allocations and frees of the caller.
using Call = std::tuple<bool, std::uint64_t, Category, std::string>;
std::vector<Call> calls_of(const record::MemoryTrace& trace) {
  std::vector<Call> calls;
  for (const record::TraceOperation& operation : trace.operations) {
    const bool is_alloc = operation.action == record::TraceAction::kAlloc;
    const bool is_free = operation.action == record::TraceAction::kFree ||
                         operation.action == record::TraceAction::kFreePending;
    if (!is_alloc && !is_free) continue;
    const record::TraceAllocation& one = trace.allocations[operation.allocation];
    calls.emplace_back(is_alloc, one.bytes, one.category, trace.names[one.name]);
  }
  return calls;
}

// The record is written in PyTorch's format and read back, with a plan and without.
TEST(ReplayReport, OurAllocatorsRecordTheReplayedTrace) {
  for (const char* const family : {"zero3", "dense", "varlen"}) {
    const record::MemoryTrace trace = with_steps(generated(family, 2)).trace;
    for (const bool planned : {false, true}) {
      const record::MemorySnapshot recorded = snapshot_after(trace, planned);
      std::string file;
      record::write_torch_snapshot(recorded, [&](std::string_view part) { file += part; });
      record::ByteSource source(file, "written");
      const record::MemorySnapshot snapshot =
          record::torch_snapshot(record::read_pickle(source), "written");
      record::TraceDefects defects;
      const record::MemoryTrace again = record::trace_of(snapshot, trace.source, "torch", &defects);
      EXPECT_EQ(defects.contradictions + defects.unknown_frees, 0u) << family << planned;
      ASSERT_EQ(calls_of(again), calls_of(trace)) << family << planned;
      EXPECT_EQ(record::peak_live_bytes(again), record::peak_live_bytes(trace))
          << family << planned;
      std::uint64_t expected_bytes = 0;
      for (const Call& call : calls_of(trace)) {
        expected_bytes += std::get<0>(call) ? std::get<1>(call) : -std::get<1>(call);
      }
      EXPECT_EQ(testing::sums_of(snapshot.segments).live_bytes, expected_bytes)
          << family << planned;
    }
  }
}

TEST(ReplayReport, PlotsOfAllPoliciesAreOneSvg) {
  const std::string svg =
      plot_replays(with_steps(generated("lora", 1)), {native_policy(), dynamic_policy()});
  EXPECT_EQ(svg.find("<svg"), svg.rfind("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_TRUE(testing::mentions(svg, "lora seed 1, native"));
  EXPECT_TRUE(testing::mentions(svg, "lora seed 1, dynamic"));
}

}  // namespace
}  // namespace sluice::replay
