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
#include "base/units.hpp"
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
                         ::testing::Values(Generated{"dense", 2}, Generated{"zero3", 5}),
                         [](const auto& one) { return one.param.family; });

TEST(ReplayReport, NamesTheKnownPolicies) {
  EXPECT_EQ(policies_named({}).size(), 4u);
  EXPECT_EQ(policies_named({"planned", "native"}).front().name, "native");
  const std::string message =
      testing::message_of<InputError>([&] { policies_named({"jemalloc"}); });
  EXPECT_NE(message.find("native, expandable, dynamic, planned"), std::string::npos);
}

TEST(ReplayReport, ScoresPlansByWholeIterations) {
  record::MemoryTrace trace = generated("dense", 1);
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

// One live block of 1 GiB lies in the middle of a cached segment of 12.5 GiB when 10.84 GiB are
// refused, with 10.3 GiB of the device free (pytorch #35901). Then the program goes on.
record::MemorySnapshot half_a_card() {
  constexpr std::uint64_t kAt = std::uint64_t{1} << 46;
  constexpr std::uint64_t kSegment = 12 * kGiB + kGiB / 2;
  using enum record::MemoryAction;
  record::MemorySnapshot snapshot;
  snapshot.names = {"", "sit.py:76 f"};
  snapshot.segments = {{.address = kAt,
                        .bytes = kSegment,
                        .blocks = {{kAt, 2 * kGiB},
                                   {kAt + 2 * kGiB, kGiB, kGiB, record::BlockState::kAllocated},
                                   {kAt + 3 * kGiB, kSegment - 3 * kGiB}}}};
  const auto add = [&](record::MemoryAction action, std::uint64_t address, std::uint64_t bytes) {
    snapshot.events.push_back({.action = action, .name = 1, .address = address, .bytes = bytes});
  };
  add(kSegmentAlloc, kAt, kSegment);
  for (const std::uint64_t bytes : {kSegment, 2 * kGiB}) {
    add(kAlloc, kAt, bytes);
    if (bytes == 2 * kGiB) add(kAlloc, kAt + 2 * kGiB, kGiB);
    add(kFreeRequested, kAt, bytes);
    add(kFreeCompleted, kAt, bytes);
  }
  add(kOutOfMemory, 11'048'227'200, 11'639'361'536);
  add(kStep, 0, 0);
  return snapshot;
}

TEST(ReplayReport, APolicyThatCannotServeTheRefusedRequestDoesNotFit) {
  record::TraceDefects defects;
  const SteppedTrace stepped =
      with_steps(record::trace_of(half_a_card(), "half", "torch", &defects));
  EXPECT_EQ(defects.contradictions, 0u);
  ReplayReportOptions options;
  options.timing_rounds = 1;
  const auto verdicts = [&](std::uint64_t capacity_bytes) {
    options.capacity_bytes = capacity_bytes;
    const nlohmann::json event = replay_report(stepped, all_policies(), options);
    std::string text;
    for (const auto& policy : event["policies"]) text += policy["fits"].get<bool>() ? 'y' : 'n';
    return std::pair(text, event);
  };
  // On that device: the policies that gather the free memory serve it.
  const auto [text, event] = verdicts(22 * kGiB + 4 * kGiB / 5);
  EXPECT_EQ(text, "nyyy");
  EXPECT_EQ(event["peak_live_bytes"], 12 * kGiB + kGiB / 2);
  EXPECT_EQ(event["peak_needed_bytes"], 12 * kGiB + kGiB / 2);
  EXPECT_EQ(event["policies"][0]["peak_reserved_bytes"], 12 * kGiB + kGiB / 2);
  EXPECT_GT(event["policies"][0]["least_capacity_bytes"], 23 * kGiB);
  EXPECT_EQ(event["policies"][0]["failure"]["refused_in_record"], true);
  ASSERT_EQ(event["refused"].size(), 1u);
  EXPECT_EQ(event["refused"][0]["site"], "sit.py:76 f");
  EXPECT_EQ(event["refused"][0]["device_free_bytes"], 11'048'227'200);
  const std::string table = replay_report_table(event);
  EXPECT_TRUE(testing::mentions(table, "the record refused 1 request"));
  EXPECT_TRUE(testing::mentions(table, "sit.py:76 f"));
  EXPECT_TRUE(testing::mentions(table, "native refuses 10.8 GiB at operation 5"));
  // Below what was live and asked, nobody can.
  EXPECT_EQ(verdicts(12 * kGiB + kGiB / 4).first, "nnnn");
  EXPECT_EQ(verdicts(24 * kGiB).first, "yyyy");
}

nlohmann::json report_of(const SteppedTrace& stepped, std::uint64_t capacity_bytes) {
  ReplayReportOptions options;
  options.capacity_bytes = capacity_bytes;
  options.least_capacity = false;
  options.timing_rounds = 1;
  return replay_report(stepped, all_policies(), options);
}

// The first operation is a request that would fit: it is not the one to name.
TEST(ReplayReport, MemoryFromBeforeTheRecordThatDoesNotFitHasASentenceOfItsOwn) {
  record::MemorySnapshot snapshot;
  snapshot.events = {
      {.action = record::MemoryAction::kAlloc, .address = 4096, .bytes = 512},
      {.action = record::MemoryAction::kFreeRequested, .address = 4096, .bytes = 512},
      {.action = record::MemoryAction::kFreeCompleted, .address = 4096, .bytes = 512},
      {.action = record::MemoryAction::kFreeRequested, .address = 8 * kGiB, .bytes = 10 * kGiB}};
  const nlohmann::json event =
      report_of(with_steps(record::trace_of(snapshot, "held before", "rmm")), kGiB);
  const std::string table = replay_report_table(event);
  for (const nlohmann::json& policy : event["policies"]) {
    EXPECT_EQ(policy["fits"], false);
    EXPECT_TRUE(policy["failure"]["operation"].is_null()) << policy;
    EXPECT_EQ(policy["failure"]["live_bytes"], 10 * kGiB);
    EXPECT_TRUE(testing::mentions(table, policy["policy"].get<std::string>() +
                                             " has no room for the memory held before the first "
                                             "operation: 10.0 GiB live"));
  }
  EXPECT_EQ(table.find("refuses"), std::string::npos) << table;
}

// Operations have the numbers of the record, which has neither the added marks nor, for a plot, a
// place for refused requests.
TEST(ReplayReport, OperationsAreNumberedAsTheRecordHasThem) {
  record::MemoryTrace trace;
  const auto add = [&](record::TraceAction action, std::uint64_t bytes) {
    trace.operations.push_back({action, static_cast<std::uint32_t>(trace.allocations.size())});
    trace.allocations.push_back({.bytes = bytes});
    if (action == record::TraceAction::kRefused) {
      trace.refused.push_back({trace.operations.back().allocation});
    } else {
      trace.operations.push_back({record::TraceAction::kFree, trace.operations.back().allocation});
    }
  };
  add(record::TraceAction::kRefused, kGiB);
  for (int i = 0; i < 40; ++i) add(record::TraceAction::kAlloc, 400 * kMiB);
  add(record::TraceAction::kRefused, 2 * kGiB);
  const SteppedTrace stepped = with_steps(trace);
  ASSERT_GT(stepped.added_marks.size(), 38u);
  const nlohmann::json event = report_of(stepped, kGiB + kGiB / 2);
  EXPECT_EQ(event["operations"], 82);
  EXPECT_EQ(event["refused"][0]["operation"], 0);
  EXPECT_EQ(event["refused"][1]["operation"], 81);
  for (const nlohmann::json& policy : event["policies"]) {
    EXPECT_EQ(policy["failure"]["operation"], 81) << policy;
  }
  // Two steps are watched, one is planned, and the plan serves one before it is scored.
  EXPECT_EQ(event["policies"][3]["scored_from"].get<std::size_t>() % 2, 1u);
  EXPECT_LE(event["policies"][3]["scored_from"], 11);
  EXPECT_TRUE(testing::mentions(plot_replays(stepped, {native_policy()}), "operations 1 to 2"));
}

// A block that comes and goes is one iteration each time, to the end of the record.
TEST(ReplayReport, PlannedServesABlockInALoopWithoutASecondOne) {
  record::MemoryTrace trace;
  for (std::uint32_t i = 0; i < 40; ++i) {
    trace.allocations.push_back({.bytes = 400 * kMiB});
    trace.operations.push_back({record::TraceAction::kAlloc, i});
    trace.operations.push_back({record::TraceAction::kFree, i});
  }
  const nlohmann::json event = report_of(with_steps(trace), kGiB);
  EXPECT_EQ(event["iterations"], 40);
  const nlohmann::json planned = event["policies"][3];
  EXPECT_EQ(planned["scored_peak_reserved_bytes"], 400 * kMiB);
  EXPECT_EQ(planned["fallbacks"], 0);
}

// Our simulated device holds 4 TiB. The other policies' figures stand, and these have none.
TEST(ReplayReport, APolicyThatNeverCompletesHasNoFigures) {
  record::MemorySnapshot snapshot;
  snapshot.events = {
      {.action = record::MemoryAction::kAlloc, .address = 4096, .bytes = 6'000'000'000'000},
      {.action = record::MemoryAction::kFreeRequested,
       .address = 4096,
       .bytes = 6'000'000'000'000}};
  const record::MemoryTrace trace = record::trace_of(snapshot, "six", "sluice");
  ReplayReportOptions options;
  options.timing_rounds = 1;
  const nlohmann::json event = replay_report(with_steps(trace), all_policies(), options);
  EXPECT_EQ(event["policies"][0]["peak_reserved_bytes"], round_up(6'000'000'000'000, 2 * kMiB));
  for (const std::size_t p : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    const nlohmann::json& policy = event["policies"][p];
    EXPECT_FALSE(policy.contains("peak_reserved_bytes")) << policy;
    EXPECT_EQ(policy["failure"]["operation"], 0) << policy;
  }
  EXPECT_TRUE(testing::mentions(replay_report_table(event), "dynamic refuses 5.46 TiB"));
  for (const NamedPolicy& policy : all_policies()) EXPECT_GE(replay_seconds(trace, policy, 1), 0.0);
  EXPECT_TRUE(testing::mentions(testing::refusal_of([&] { snapshot_after(trace, false); }),
                                "'six' must fit in 4.00 TiB"));
}

// Programs ask for far more than any device has, by mistake.
TEST(ReplayReport, NoMemorySufficesForAPetabyte) {
  record::MemorySnapshot snapshot;
  snapshot.events = {
      {.action = record::MemoryAction::kAlloc, .address = 512, .bytes = 1024},
      {.action = record::MemoryAction::kOutOfMemory, .bytes = std::uint64_t{1} << 50},
      {.action = record::MemoryAction::kOutOfMemory, .bytes = std::uint64_t{1} << 61}};
  ReplayReportOptions options;
  options.capacity_bytes = 80 * kGiB;
  options.timing_rounds = 1;
  const nlohmann::json event = replay_report(
      with_steps(record::trace_of(snapshot, "by mistake", "torch")), all_policies(), options);
  for (const nlohmann::json& policy : event["policies"]) {
    EXPECT_FALSE(policy["fits"].get<bool>()) << policy;
    EXPECT_FALSE(policy.contains("least_capacity_bytes")) << policy;
  }
}

// The events of a generated trace read back as the same operations.
TEST(ReplayReport, EventsOfATraceReadBackAsTheTrace) {
  record::MemoryTrace trace = generated("zero3", 3);
  const auto middle = static_cast<std::ptrdiff_t>(trace.operations.size() / 2);
  trace.operations.insert(trace.operations.begin() + middle, {record::TraceAction::kFlush, 0});
  for (std::size_t i = 0; i < trace.allocations.size(); i += 3) {
    trace.allocations[i].pool = i % 2 == 0 ? UINT64_MAX : 7;
  }
  const auto refused = static_cast<std::uint32_t>(trace.allocations.size());
  trace.allocations.push_back({.bytes = 12'345, .stream = 6, .pool = 7, .name = 1});
  trace.operations.push_back({record::TraceAction::kRefused, refused});
  trace.operations.push_back({record::TraceAction::kReleasePool, 7});
  trace.refused.push_back({refused, 0, 55});
  const record::MemoryTrace again = record::trace_of(events_of(trace), trace.source, "sluice");
  ASSERT_EQ(again.refused.size(), 1u);
  EXPECT_EQ(again.refused[0].device_free_bytes, 55u);
  EXPECT_EQ(again.allocations[again.refused[0].allocation].bytes, 12'345u);
  EXPECT_EQ(again.operations.back().allocation,
            again.allocations[again.refused[0].allocation].pool);
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
  for (const char* const family : {"zero3", "dense", "moe"}) {
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

// Memory from before the record is drawn, at its place, and the picture's figure is the table's.
TEST(ReplayReport, ThePlotShowsTheMemoryFromBeforeTheRecord) {
  constexpr std::uint64_t kAt = std::uint64_t{1} << 46;
  record::MemorySnapshot snapshot;
  snapshot.segments = {
      {.address = kAt,
       .bytes = 48 * kMiB,
       .blocks = {{kAt, 40 * kMiB, 40 * kMiB, record::BlockState::kAllocated},
                  {kAt + 40 * kMiB, 8 * kMiB, 7 * kMiB, record::BlockState::kAllocated}}}};
  snapshot.events = {
      {.action = record::MemoryAction::kAlloc, .address = kAt + 40 * kMiB, .bytes = 7 * kMiB}};
  const record::MemoryTrace trace = record::trace_of(snapshot, "late", "torch");
  EXPECT_EQ(record::peak_live_bytes(trace), 47 * kMiB);
  for (const NamedPolicy& policy : all_policies()) {
    ReplayRecord record;
    ASSERT_TRUE(replay_trace(trace, policy, UINT64_MAX, &record).completed);
    ASSERT_EQ(record.placed.size(), 2u) << policy.name;
    EXPECT_EQ(record.placed[0].begin + record.placed[1].begin, 0u);
  }
  EXPECT_TRUE(testing::mentions(plot_replays(with_steps(trace), {native_policy()}), "47.0 MiB"));
}

TEST(ReplayReport, PlotsOfAllPoliciesAreOneSvg) {
  const std::string svg =
      plot_replays(with_steps(generated("dense", 1)), {native_policy(), dynamic_policy()});
  EXPECT_EQ(svg.find("<svg"), svg.rfind("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_TRUE(testing::mentions(svg, "dense seed 1, native"));
  EXPECT_TRUE(testing::mentions(svg, "dense seed 1, dynamic"));
}

}  // namespace
}  // namespace sluice::replay
