// The combinations of ranks, ZeRO stages and step options that the world tests go through. Each
// runs four steps, on one resident rank with its updates after the backward pass and on N ranks as
// the combination says, and compares terms.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "engine/schedule/check/interpret.hpp"
#include "tests/support/rank_world.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::testing {

struct WorldCase {
  std::int32_t ranks = 2;
  std::int32_t zero_stage = 0;
  std::int32_t rounds = 1;  // micro-batches of each rank
  std::int32_t fold_groups = 1;
  schedule::UpdatePlacement update = schedule::UpdatePlacement::kAfterBackward;
  schedule::ComputeOrder order = schedule::ComputeOrder::kMicrobatch;
  bool recompute = false;
  int placement = 0;  // everything in one tier, or 3: anything anywhere
  std::uint64_t seed = 0;

  std::string name() const {
    return "ranks " + std::to_string(ranks) + ", stage " + std::to_string(zero_stage) +
           ", rounds " + std::to_string(rounds) + ", groups " + std::to_string(fold_groups) +
           ", update " + std::to_string(static_cast<int>(update)) + ", order " +
           std::to_string(static_cast<int>(order)) + (recompute ? ", recompute" : "") +
           ", placement " + std::to_string(placement) + ", seed " + std::to_string(seed);
  }
};

inline constexpr std::size_t kWorldCases = 4 * 4 * 2 * 3 * 4 * 2 * 2 * 4;  // 6,144

// The i-th combination; a neighbour of i differs in the first digit.
inline WorldCase world_case(std::size_t i) {
  WorldCase made;
  // Drawn, so that no option goes with a digit.
  made.seed = CounterRng(i, stream_of("test/worlds")).below(0, std::uint64_t{1} << 40);
  const auto digit = [&](std::size_t base) {
    const std::size_t value = i % base;
    i /= base;
    return static_cast<int>(value);
  };
  made.ranks = std::array{2, 3, 4, 8}[static_cast<std::size_t>(digit(4))];
  made.zero_stage = digit(4);
  made.rounds = 1 + digit(2);
  // One sum, a group for each rank, or for each micro-batch.
  made.fold_groups =
      std::array{1, made.ranks, made.ranks * made.rounds}[static_cast<std::size_t>(digit(3))];
  made.update = static_cast<schedule::UpdatePlacement>(digit(4));
  made.order = static_cast<schedule::ComputeOrder>(digit(2));
  made.recompute = digit(2) == 1;
  made.placement = digit(4);
  return made;
}

inline schedule::StepOptions world_options(const WorldCase& at, const schedule::StepModel& model) {
  const std::int32_t microbatches = at.ranks * at.rounds;
  schedule::StepOptions options = random_options(model, microbatches, at.seed);
  if (at.placement < 3) {
    const auto tier = static_cast<Tier>(at.placement);
    options.placement = placed(model.units.size(), tier, tier, tier);
  }
  options.order = at.order;
  options.recompute = at.recompute ? random_recompute(model, at.seed) : schedule::Recomputation{};
  options.update = at.update;
  options.fold_groups = at.fold_groups;
  options.exchange_lag = static_cast<std::int32_t>(at.seed % 3);
  for (std::size_t unit = 0; unit < model.units.size() && at.seed % 4 != 0; ++unit) {
    options.placement.partial.push_back(static_cast<Tier>((at.seed / 4 + unit) % kTierCount));
  }
  // Nodes of two or four ranks sum first where there are several nodes and groups.
  const std::int32_t node = std::array{0, 2, 4}[at.seed % 3];
  if (at.fold_groups > 1 && node < at.ranks && at.ranks % std::max(node, 1) == 0) {
    options.node_ranks = node;
  }
  if (at.seed % 2 == 0) options.bucket_elems = 4096 * static_cast<std::uint64_t>(at.ranks);
  place_for_stage(options.placement, at.zero_stage);
  return options;
}

// Steps 0 to 3, of which every other one is accepted with a clip factor of one; all of them are if
// the update cannot wait for the factor.
inline std::vector<bool> verdicts_of(const WorldCase& at) {
  const bool all = at.update == schedule::UpdatePlacement::kInBackward;
  return {true, all, true, all};
}

template <typename Compile>
void run_steps(StepChain& run, const WorldCase& at, Compile compile) {
  using schedule::StepKind;
  const std::vector<bool> accepted = verdicts_of(at);
  const schedule::Schedule steady = compile(StepKind::kTraining);
  const bool carries = at.update == schedule::UpdatePlacement::kNextForward;
  const bool redoes = at.update == schedule::UpdatePlacement::kSpeculative;
  for (std::size_t step = 0; step < accepted.size(); ++step) {
    run.pass(carries && step == 0 ? compile(StepKind::kFirst) : steady, step, accepted[step]);
    if (::testing::Test::HasFatalFailure()) return;
    if (!redoes || accepted[step]) continue;
    run.give_up();
    run.pass(compile(StepKind::kRedo), step);
  }
  if (carries) run.pass(compile(StepKind::kDrain), accepted.size());
}

// Returns the number of timings that were tried.
inline int expect_one_ranks_terms(const WorldCase& at, std::size_t timings) {
  SCOPED_TRACE(at.name());
  const schedule::StepModel model = drawn_model(at.seed / 3);
  const schedule::StepOptions options = world_options(at, model);
  StepChain plain;
  const std::vector<bool> accepted = verdicts_of(at);
  schedule::StepOptions resident = resident_options(model, options.microbatches);
  resident.fold_groups = at.fold_groups;
  const schedule::Schedule step = schedule::compile(model, resident, schedule::StepKind::kTraining);
  for (std::size_t i = 0; i < accepted.size(); ++i) plain.pass(step, i, accepted[i]);
  if (::testing::Test::HasFatalFailure()) return 0;
  std::vector<schedule::InterpretOptions> all = schedule::adverse_timings(at.seed, 2);
  int tried = 0;
  for (std::size_t i = 0; i < std::min(timings, all.size()); ++i) {
    StepChain run(timings >= all.size() ? all[i] : all[(at.seed * 7 + i * 11) % all.size()]);
    run_steps(run, at, [&](schedule::StepKind kind) {
      return world_of(model, options, kind, at.ranks, at.zero_stage);
    });
    if (::testing::Test::HasFatalFailure()) return tried;
    EXPECT_EQ(run.norms, plain.norms);
    EXPECT_EQ(run.losses, plain.losses);
    EXPECT_EQ(without_gradients(run.exit), plain.exit);
    ++tried;
  }
  return tried;
}

}  // namespace sluice::testing
