#include "tools/report/pipeline_view.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace sluice::report {
namespace {

std::optional<PassKind> kind_of(std::string_view op) {
  struct Named {
    std::string_view op;
    PassKind kind;
  };
  static constexpr std::array<Named, 5> kPasses{{{"Forward", PassKind::kForward},
                                                 {"Loss", PassKind::kForward},
                                                 {"Recompute", PassKind::kRecompute},
                                                 {"BackwardInput", PassKind::kBackwardInput},
                                                 {"BackwardWeight", PassKind::kBackwardWeight}}};
  for (const Named& pass : kPasses) {
    if (pass.op == op) return pass.kind;
  }
  return std::nullopt;
}

bool continues(const DrawnPass& drawn, const DrawnPass& next) {
  return drawn.kind == next.kind && drawn.microbatch == next.microbatch &&
         std::abs(next.last_unit - drawn.last_unit) == 1;
}

}  // namespace

// A gap between the units of one drawn pass, such as a wait for weights, is part of the bubble.
PipelineRow pipeline_row(std::uint64_t rank, const TraceFile& trace) {
  PipelineRow row{rank, {}, 0, 0};
  std::int64_t first_ns = 0, last_ns = 0;
  for (const TraceSpan& span : trace.spans) {
    if (trace.names[span.track] != "compute") continue;
    const std::optional<PassKind> kind = kind_of(trace.names[span.name]);
    if (!kind) continue;
    if (row.passes.empty()) first_ns = span.begin_ns;
    last_ns = std::max(last_ns, span.end_ns);
    row.compute_ns += span.end_ns - span.begin_ns;
    const DrawnPass next{*kind, span.unit, span.unit, span.microbatch, span.begin_ns, span.end_ns};
    if (!row.passes.empty() && continues(row.passes.back(), next)) {
      row.passes.back().last_unit = next.last_unit;
      row.passes.back().end_ns = next.end_ns;
    } else {
      row.passes.push_back(next);
    }
  }
  row.span_ns = last_ns - first_ns;
  return row;
}

bool align_rows(const std::vector<std::int64_t>& starts_ns, std::vector<PipelineRow>& rows) {
  if (rows.empty()) return true;
  const auto [earliest, latest] = std::minmax_element(starts_ns.begin(), starts_ns.end());
  std::int64_t longest_ns = 0;
  for (const PipelineRow& row : rows) longest_ns = std::max(longest_ns, row.span_ns);
  const bool one_clock = *latest - *earliest <= longest_ns;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].passes.empty()) continue;
    const std::int64_t shift =
        one_clock ? starts_ns[i] - *earliest : -rows[i].passes.front().begin_ns;
    for (DrawnPass& pass : rows[i].passes) {
      pass.begin_ns += shift;
      pass.end_ns += shift;
    }
  }
  return one_clock;
}

}  // namespace sluice::report
