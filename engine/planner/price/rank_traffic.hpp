// The bytes that a rank exchanges with others in one step (docs/design/ranks.md): counted in a schedule,
// or, between data-parallel ranks, by formula before there is one.
#pragma once

#include <cstdint>

#include "engine/planner/price/rank_links.hpp"
#include "engine/planner/price/step_shares.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Bytes that a rank sends in one step, by purpose.
struct SentBytes {
  std::uint64_t gradients = 0;
  std::uint64_t weights = 0;
  std::uint64_t norm = 0;         // partials
  std::uint64_t activations = 0;  // between stages: outputs, and their gradients
  std::uint64_t inner = 0;        // in a tensor group, as much as is received
  // In collectives.
  std::uint64_t total() const { return gradients + weights + norm; }
  bool operator==(const SentBytes&) const = default;
};
// Counted in the list of one rank.
SentBytes sent_bytes(const schedule::Schedule& list);

// The bytes that a rank sends over each kind of link in one step, and moves to its own memories.
struct LinkUse {
  std::uint64_t node = 0;     // to ranks of its node
  std::uint64_t network = 0;  // to ranks of other nodes
  schedule::LinkBytes own;
  bool operator==(const LinkUse&) const = default;
};
// Counted in the list of one rank.
LinkUse link_use(const schedule::Schedule& list, const RankLinks& links);

// The figures of a plan that differ from rank to rank, of one training schedule with all its updates.
struct RankFigures {
  std::int32_t rank = 0;
  std::int32_t alike = 1;      // ranks with these figures; this one is the first
  std::int32_t last_rank = 0;  // the last one of these
  LinkUse links;
  SentBytes sent;
  std::uint64_t received_bytes = 0;         // in collectives
  std::uint64_t received_stages_bytes = 0;  // from other stages
  std::uint64_t state_bytes = 0;
  TierBytes peak_bytes{};
  // Pipelines, and plans by classes. Of one simulated schedule: the time from the rank's first pass
  // to the end of its last, the part of it in which it computes, and the end of all its work.
  double span_s = 0;
  double compute_s = 0;
  double end_s = 0;
  StepShares shares;  // of the whole schedule
};

// The formulas. All are zero for a rank that is alone. Of what a rank sends and receives the larger
// amount counts, since a link works in both directions at once.
struct RankTraffic {
  double gradients = 0;  // all exchanges of gradients, and of rounded ones
  // In place of them, around a ring or with nodes that sum first: the busier direction of each kind of
  // link. `gradients` then has the rounded ones alone.
  RankLinks::Messages uneven_gradients;
  double norm = 0;          // partials of the norm
  double weights = 0;       // the gathers of updated weights, below ZeRO stage 3
  double weight_fetch = 0;  // stage 3: one gather of each unit
};
// Only microbatches, fold_groups, sum and node_ranks of the options count.
RankTraffic rank_traffic(const schedule::StepModel& model, const schedule::StepOptions& options,
                         const RankLinks& links);

// The part of all elements that the rank owns.
double owned_share(const schedule::StepModel& model);
// The number of times that a step adds or copies the gradient of this rank's home on its way there:
// once for each micro-batch of the step, but a rounded home gets it once.
std::int32_t gradient_arrivals(const schedule::StepModel& model,
                               const schedule::StepOptions& options);

}  // namespace sluice::planner
