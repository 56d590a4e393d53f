// Ways of plain data parallelism: a rank that serves all others, and sums around a ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/engine/schedule/world/world_matrix.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// The server's update is one rank's, wherever its state is and whenever it updates.
TEST(ServerRank, MakesOneRanksTerms) {
  for (std::uint64_t seed = 0; seed < sweep(48); ++seed) {
    WorldCase at = world_case(seed * 85 % kWorldCases);
    at.zero_stage = kServerStage;
    expect_one_ranks_terms(at, 1);
    if (HasFailure()) return;
  }
}

std::array<MessageBytes, 2> first_two(const Schedule& world) {
  const auto comm = static_cast<std::size_t>(Lane::kComm);
  return {message_bytes(world, 0)[comm], message_bytes(world, 1)[comm]};
}

std::uint64_t gradient_elems(const StepModel& model) {
  std::uint64_t elems = model.tied_elems;
  for (const UnitFootprint& unit : model.units) elems += unit.elems;
  return elems;
}

// A worker sends its gradients and the server all weights to each worker: 2 (N - 1) Psi elements in
// all, for one micro-batch of each rank.
TEST(ServerRank, SendsTheBytesOfTheFormulas) {
  for (const bool tied : {false, true}) {
    const StepModel model = example_model(3, tied, DType::kBF16);
    const std::uint64_t gradients = gradient_elems(model);
    const std::uint64_t weights = gradients - model.tied_elems;
    for (const std::int32_t ranks : {2, 3, 4, 8}) {
      for (const std::int32_t rounds : {1, 3}) {
        StepOptions options = example_options(model, Tier::kDevice, Tier::kPinned, Tier::kPinned);
        options.microbatches = ranks * rounds;
        const Schedule world = world_of(model, options, StepKind::kTraining, ranks, kServerStage);
        const auto [server, worker] = first_two(world);
        const auto others = static_cast<std::uint64_t>(ranks - 1);
        const auto m = static_cast<std::uint64_t>(rounds);
        const std::uint64_t norm = weights / 4096 * 8;
        EXPECT_EQ(worker.sent, 2 * m * gradients);
        EXPECT_EQ(server.sent, others * (2 * weights + norm));
        EXPECT_EQ(server.received, others * 2 * m * gradients);
        EXPECT_EQ(worker.received, 2 * weights + norm);
      }
    }
  }
}

// Within its node a rank sends the parts of other places, and then the sums of its own place to
// other nodes: of a shard one part for each node crosses the network.
TEST(NodeSum, SendsTheBytesOfTheFormulas) {
  const StepModel model = example_model(3, true, DType::kBF16);
  const std::uint64_t gradients = gradient_elems(model);
  for (const auto& [ranks, node] : {std::pair(4, 2), {8, 2}, {8, 4}}) {
    for (const std::int32_t rounds : {1, 2}) {
      StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
      options.microbatches = ranks * rounds;
      options.fold_groups = ranks;
      options.node_ranks = node;
      const Schedule world = world_of(model, options, StepKind::kTraining, ranks, 3);
      std::uint64_t within = 0;
      std::uint64_t across = 0;
      for (const Instruction& instruction : world.instructions) {
        if (instruction.op != Op::kAllToAll) continue;
        for (const Use& part : instruction.reads) {
          const bool near = part.peer / node == instruction.rank / node;
          (near ? within : across) += part.bytes;
        }
      }
      const auto inside = static_cast<std::uint64_t>(node - 1);
      const auto nodes = static_cast<std::uint64_t>(ranks / node);
      EXPECT_EQ(within, inside * nodes * gradients * (rounds == 1 ? 2 : 4));
      EXPECT_EQ(across, (nodes - 1) * gradients * 4);
    }
  }
}

struct RingCase {
  std::int32_t ranks = 2;
  std::int32_t rounds = 1;
  std::uint64_t seed = 0;
};

StepOptions ring_options(const RingCase& at, const StepModel& model) {
  StepOptions options = random_options(model, at.ranks * at.rounds, at.seed);
  place_for_stage(options.placement, 0);
  options.fold_groups = at.ranks;
  options.sum = GradientSum::kRing;
  options.exchange_lag = static_cast<std::int32_t>(at.seed % 3);
  options.bucket_elems = at.seed % 2 == 0 ? 1 << 20 : 4096 * static_cast<std::uint64_t>(at.ranks);
  options.placement.partial.assign(model.units.size(), static_cast<Tier>(at.seed / 3 % 3));
  const bool in_backward = at.seed % 5 == 0;
  options.update = in_backward ? UpdatePlacement::kInBackward : UpdatePlacement::kAfterBackward;
  return options;
}

// Neither timings nor places, buckets and lags change the order of additions; the number of ranks
// does.
TEST(RingSum, IsTheSameHoweverItRuns) {
  std::set<Term> norms;
  for (const std::int32_t ranks : {2, 3, 4, 8}) {
    for (const std::int32_t rounds : {1, 2}) {
      std::optional<Term> expected;
      for (std::uint64_t seed = 0; seed < sweep(12); ++seed) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, rounds " + std::to_string(rounds) +
                     ", seed " + std::to_string(seed));
        const StepModel model = example_model(2, true, DType::kBF16);
        const StepOptions options = ring_options({ranks, rounds, seed}, model);
        const Schedule world = world_of(model, options, StepKind::kTraining, ranks, 0);
        ASSERT_EQ(joined(validate(world)), "");
        const Interpretation values = interpret(world, adverse_timings(seed, 2)[seed % 22]);
        ASSERT_EQ(joined(values.errors), "");
        if (!expected) expected = values.norm;
        EXPECT_EQ(values.norm, expected);
      }
      norms.insert(expected.value());
    }
  }
  EXPECT_EQ(norms.size(), 8u);
}

// Each rank sends fp32 sums of all shards but its own, then its rounded shard to all others.
TEST(RingSum, SendsTheBytesOfTheFormulas) {
  for (const bool tied : {false, true}) {
    const StepModel model = example_model(3, tied, DType::kBF16);
    const std::uint64_t gradients = gradient_elems(model);
    const std::uint64_t weights = gradients - model.tied_elems;
    for (const std::int32_t ranks : {2, 3, 4, 8}) {
      for (const std::int32_t rounds : {1, 3}) {
        const StepOptions options = ring_options({ranks, rounds, 1}, model);
        const Schedule world = world_of(model, options, StepKind::kTraining, ranks, 0);
        std::uint64_t sent = 0;
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          sent += message_bytes(world, rank)[static_cast<std::size_t>(Lane::kComm)].sent;
        }
        const auto others = static_cast<std::uint64_t>(ranks - 1);
        EXPECT_EQ(sent, others * (4 * gradients + 2 * weights + weights / 4096 * 8));
      }
    }
  }
}

// An addition that is left out, or made twice, leaves a sum that lacks micro-batches.
TEST(RingSum, IsRefusedWithoutOneOfItsAdditions) {
  const StepModel model = example_model(1, false, DType::kBF16);
  const Schedule world = world_of(model, ring_options({4, 1, 1}, model), StepKind::kTraining, 4, 0);
  int tried = 0;
  for (std::size_t i = 0; i < world.instructions.size(); ++i) {
    if (world.instructions[i].op != Op::kFoldGrad) continue;
    Schedule damaged = world;
    // A Release of nothing has no effect: the sum travels on as it came.
    damaged.instructions[i].op = Op::kRelease;
    damaged.instructions[i].reads.clear();
    damaged.instructions[i].writes.clear();
    EXPECT_FALSE(validate(damaged).empty()) << i;
    ++tried;
  }
  EXPECT_GT(tried, 12);
}

}  // namespace
}  // namespace sluice::schedule
