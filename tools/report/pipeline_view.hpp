// The passes of a pipeline's traced step as people draw them: a row for each rank.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/report/trace_file.hpp"

namespace sluice::report {

enum class PassKind : std::uint8_t { kForward, kRecompute, kBackwardInput, kBackwardWeight };

// Passes of one kind and micro-batch through consecutive units, drawn as one.
struct DrawnPass {
  PassKind kind = PassKind::kForward;
  std::int32_t first_unit = 0;
  std::int32_t last_unit = 0;
  std::int32_t microbatch = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

struct PipelineRow {
  std::uint64_t rank = 0;
  std::vector<DrawnPass> passes;  // by begin
  // From the first begin to the last end, and the part of it with a pass.
  std::int64_t span_ns = 0;
  std::int64_t compute_ns = 0;
  std::int64_t bubble_ns() const { return span_ns - compute_ns; }
};

// Times are those of the trace. Empty if the trace has no passes.
PipelineRow pipeline_row(std::uint64_t rank, const TraceFile& trace);

// Moves the rows to one clock: that of the machine, which the traces start at (`starts_ns`, by
// row). Ranks of several machines have several clocks; if the starts differ by more than the
// longest row, each row begins at 0 instead. Returns whether there is one clock.
bool align_rows(const std::vector<std::int64_t>& starts_ns, std::vector<PipelineRow>& rows);

}  // namespace sluice::report
