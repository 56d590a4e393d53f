#include "engine/schedule/orders/closed_forms.hpp"

#include <algorithm>

namespace sluice::schedule {

// With v stages on each rank, the times of a rank's whole part are v times those of a stage. So the
// papers' (p - 1)(F + B) / v is (p - 1)(f + b) here.
std::optional<std::int64_t> closed_bubble(const PipelineShape& shape, const PassTimes& times) {
  const std::int64_t others = shape.ranks - 1;
  const std::int64_t f = times.forward;
  const std::int64_t i = times.backward_input;
  const std::int64_t w = times.backward_weight;
  const bool short_w = w <= std::min(f, i);
  if (shape.microbatches < shape.ranks) return std::nullopt;
  switch (shape.kind) {
    case OrderKind::kGPipe:
    case OrderKind::k1F1B:
      return others * (f + i + w);
    case OrderKind::kInterleaved:
      if (shape.microbatches % shape.ranks != 0) return std::nullopt;
      return others * (f + i + w);
    case OrderKind::kZbH1:
      if (!short_w) return std::nullopt;
      return others * (f + i - w);
    case OrderKind::kZbH2:
      if (!short_w || shape.microbatches < 2 * shape.ranks - 1) return std::nullopt;
      return others * (f + i - 2 * w);
    case OrderKind::kZbV:
      if (f != i || i != w || shape.microbatches < 2 * shape.ranks - 1) return std::nullopt;
      return 0;
    case OrderKind::kVertical:
      return others * (f + i + w);
  }
  return std::nullopt;
}

std::optional<std::int32_t> closed_in_flight(const PipelineShape& shape, std::int32_t rank) {
  const std::int32_t p = shape.ranks;
  const std::int32_t m = shape.microbatches;
  switch (shape.kind) {
    case OrderKind::kGPipe:
      return m;
    case OrderKind::kVertical:
      return shape.stages_each * m;
    case OrderKind::k1F1B:
      return std::min(m, p - rank);
    case OrderKind::kInterleaved:
      if (m % p != 0) return std::nullopt;
      return std::min(m * shape.stages_each, 2 * (p - rank - 1) + (shape.stages_each - 1) * p + 1);
    case OrderKind::kZbH1:
      if (m < p) return std::nullopt;
      return p;
    case OrderKind::kZbH2:
      if (m < 2 * p - 1) return std::nullopt;
      return 2 * p - 1;
    case OrderKind::kZbV:
      if (m < 2 * p - 1) return std::nullopt;
      return 2 * p;
  }
  return std::nullopt;
}

}  // namespace sluice::schedule
