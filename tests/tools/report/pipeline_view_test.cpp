// The picture of a pipeline: passes of stages as blocks, bubbles as gaps, rows on one clock.
#include "tools/report/pipeline_view.hpp"

#include <gtest/gtest.h>

namespace sluice::report {
namespace {

// A trace by hand: op, unit, micro-batch, begin, end on the compute lane.
struct SpanOf {
  const char* op;
  std::int32_t unit, microbatch;
  std::int64_t begin_ns, end_ns;
};

TraceFile trace_of(const std::vector<SpanOf>& spans) {
  TraceFile trace;
  trace.names = {"compute", "h2d"};
  for (const SpanOf& span : spans) {
    trace.names.emplace_back(span.op);
    const auto name = static_cast<TraceId>(trace.names.size() - 1);
    trace.spans.push_back({0, name, span.begin_ns, span.end_ns, span.unit, span.microbatch, 0, 3});
  }
  // Another lane's work is no pass.
  trace.spans.push_back({1, 2, 0, 1000, 0, 0, 0, 3});
  return trace;
}

TEST(PipelineView, APassThroughAStageIsOneBlock) {
  const PipelineRow row = pipeline_row(1, trace_of({{"Forward", 2, 0, 10, 20},
                                                    {"Forward", 3, 0, 22, 30},
                                                    {"Forward", 2, 1, 30, 40},
                                                    {"Forward", 3, 1, 40, 50},
                                                    {"AccumulateGrad", 3, 0, 50, 55},
                                                    {"BackwardInput", 3, 0, 70, 80},
                                                    {"BackwardWeight", 3, 0, 80, 90},
                                                    {"BackwardInput", 2, 0, 90, 100}}));
  ASSERT_EQ(row.passes.size(), 5u);
  EXPECT_EQ(row.passes[0].first_unit, 2);
  EXPECT_EQ(row.passes[0].last_unit, 3);
  EXPECT_EQ(row.passes[0].end_ns, 30);
  EXPECT_EQ(row.passes[1].microbatch, 1);
  EXPECT_EQ(row.passes[2].kind, PassKind::kBackwardInput);
  EXPECT_EQ(row.span_ns, 90);
  EXPECT_EQ(row.compute_ns, 68);
  // 2 between two units, 5 of sums, and 15 of waiting.
  EXPECT_EQ(row.bubble_ns(), 22);
  EXPECT_TRUE(pipeline_row(0, trace_of({})).passes.empty());
}

TEST(PipelineView, RowsShareTheClockOfTheirMachine) {
  std::vector<PipelineRow> rows{pipeline_row(0, trace_of({{"Forward", 0, 0, 5, 50}})),
                                pipeline_row(1, trace_of({{"Loss", 1, 0, 7, 50}}))};
  EXPECT_TRUE(align_rows({1000, 1030}, rows));
  EXPECT_EQ(rows[0].passes[0].begin_ns, 5);
  EXPECT_EQ(rows[1].passes[0].begin_ns, 37);
  EXPECT_EQ(rows[1].passes[0].end_ns, 80);
}

TEST(PipelineView, RowsOfSeveralMachinesBeginAtZero) {
  std::vector<PipelineRow> rows{pipeline_row(0, trace_of({{"Forward", 0, 0, 5, 50}})),
                                pipeline_row(1, trace_of({{"Loss", 1, 0, 7, 50}}))};
  EXPECT_FALSE(align_rows({1000, 9'000'000}, rows));
  EXPECT_EQ(rows[0].passes[0].begin_ns, 0);
  EXPECT_EQ(rows[1].passes[0].begin_ns, 0);
  EXPECT_EQ(rows[1].passes[0].end_ns, 43);
}

}  // namespace
}  // namespace sluice::report
