// Law 1 over ranks: any number of ranks and any ZeRO stage gives the losses, norms and weights of
// one rank, to the bit. Ranks are threads here; the bytes that they exchange are real.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/rng.hpp"
#include "engine/planner/choice/rank_settings.hpp"
#include "tests/support/rank_sessions.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kSteps = 3;

struct RanksCase {
  int ranks = 2;
  int zero = 3;
  int fold_groups = 1;
  int accumulate = 4;
  int exchange_lag = 0;
  Overrides settings;
  Tier partial = Tier::kDevice;  // where sums of a rank's groups wait
};

Overrides small_model() {
  return kChosenByHand + Overrides{"model.layers=2", "model.hidden=64",     "model.heads=4",
                                   "train.seq=16",   "train.micro_batch=2", "train.steps=3",
                                   "model.vocab=256"};
}

config::Config config_of(const TrainingBench& bench, const RanksCase& at, int ranks) {
  return bench.config("run", small_model() + at.settings +
                                 Overrides{"parallel.zero=" + std::to_string(at.zero),
                                           "parallel.data=" + std::to_string(ranks),
                                           "train.accumulate=" + std::to_string(at.accumulate),
                                           "train.fold_groups=" + std::to_string(at.fold_groups)});
}

// The run of one rank with the same settings, and the options that it was planned with.
struct Alone {
  RanksRecord record;
  schedule::StepOptions options;
};

Alone train_alone(const TrainingBench& bench, const RanksCase& at) {
  RanksCase alone = at;
  alone.zero = 0;
  const config::Config config = config_of(bench, alone, 1);
  PlannedSession planned(config);
  return {train_session(planned.session(), config, kSteps), planned.plan().options};
}

void expect_one_ranks_bits(const RanksCase& at) {
  SCOPED_TRACE(std::to_string(at.ranks) + " ranks, stage " + std::to_string(at.zero) + ", groups " +
               std::to_string(at.fold_groups) + ", " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  Alone alone = train_alone(bench, at);
  alone.options.exchange_lag = at.exchange_lag;
  alone.options.placement.partial.assign(alone.options.placement.weight.size(), at.partial);
  const config::Config config = config_of(bench, at, at.ranks);
  planner::set_sums(config, alone.options);
  const RanksRun run = train_on_ranks(config, alone.options, kSteps);
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, alone.record);
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
}

// Every number of ranks with every stage and both kinds of groups; the rest is drawn, so that no
// two settings go together. Gradients and weights that a stage keeps whole move to the device
// (place_for_stage).
RanksCase ranks_case(std::size_t i) {
  const CounterRng random(i, stream_of("test/ranks"));
  std::uint64_t draws = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(draws++, bound); };
  RanksCase at;
  at.ranks = std::array{2, 3, 4, 8}[i % 4];
  at.zero = static_cast<int>(i / 4 % 4);
  at.fold_groups = i / 16 % 2 == 1 ? at.ranks : 1;
  at.accumulate = at.ranks * (below(3) == 0 ? 2 : 1);
  at.exchange_lag = static_cast<int>(below(3));
  at.partial = static_cast<Tier>(below(3));
  const auto pick = [&](std::initializer_list<const char*> values) {
    at.settings.push_back(values.begin()[below(values.size())]);
  };
  pick({"train.order=unit", "train.order=microbatch"});
  pick({"recompute.policy=none", "recompute.policy=unit", "recompute.policy=selective"});
  pick({"optimizer.name=adamw", "optimizer.name=lion", "optimizer.name=muon",
        "optimizer.name=adafactor"});
  pick({"model.family=gpt2", "model.family=llama"});
  pick({"parallel.bucket=16MiB", "parallel.bucket=64KiB"});
  // An update in the backward pass knows no norm of the whole gradient.
  if (below(4) == 0) {
    at.settings = at.settings + Overrides{"optimizer.placement=in_backward", "train.clip=0"};
    pick({"train.precision=bf16", "train.precision=fp32"});
  } else {
    pick({"optimizer.placement=after_backward", "optimizer.placement=next_forward",
          "optimizer.placement=speculative"});
    pick({"train.clip=1.0", "train.clip=0"});
    pick({"train.precision=bf16", "train.precision=fp32", "train.precision=fp16"});
  }
  at.settings = at.settings + places_in_turn(below(64));
  pick({"memory.prefetch=0", "memory.prefetch=1", "memory.prefetch=2"});
  return at;
}

TEST(Ranks, GiveOneRanksBits) {
  for (std::size_t i = 0; i < sweep(64); ++i) {
    expect_one_ranks_bits(ranks_case(i));
    if (HasFatalFailure()) return;
  }
}

// Groups of micro-batches have sums of their own, so their number decides the bits and nothing
// else.
TEST(Ranks, EightGroupsGiveOneHashOnOneToEightRanks) {
  RanksCase at{1, 0, 8, 8, 1, {"train.precision=fp32"}};
  const TrainingBench bench;
  const Alone alone = train_alone(bench, at);
  for (const int ranks : {2, 4, 8}) {
    at.ranks = ranks;
    at.zero = 3;
    const RanksRun run = train_on_ranks(config_of(bench, at, ranks), alone.options, kSteps);
    for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, alone.record) << ranks;
  }
  at.ranks = 1;
  at.fold_groups = 1;
  EXPECT_NE(train_alone(bench, at).record.weights_hash, alone.record.weights_hash);
}

// The bits of one sum are those of one rank on any number of ranks.
TEST(Ranks, OneGroupGivesOneHashOnOneToEightRanks) {
  RanksCase at{1, 0, 1, 24, 1, {}};
  const TrainingBench bench;
  const Alone alone = train_alone(bench, at);
  for (const int ranks : {2, 3, 4, 8}) {
    at.ranks = ranks;
    at.zero = ranks == 8 ? 3 : ranks % 4;
    const RanksRun run = train_on_ranks(config_of(bench, at, ranks), alone.options, kSteps);
    for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, alone.record) << ranks;
  }
}

// A rank that sums several groups of several micro-batches keeps these sums anywhere.
TEST(Ranks, SumsOfGroupsWaitOnAnyTier) {
  int next = 0;
  for (const Tier partial : kTiers) {
    for (const int groups : {2, 4, 8}) {  // of 4, 2 and 1 micro-batches, 4 of each rank
      for (const char* order : {"train.order=microbatch", "train.order=unit"}) {
        if (samples_sweeps() && next++ % 5 != 0) continue;
        const int zero = groups == 2 ? 3 : groups == 4 ? 2 : 0;
        expect_one_ranks_bits(
            {2, zero, groups, 8, 1,
             Overrides{order} + places("pinned", zero == 2 ? "storage" : "pinned", "pinned"),
             partial});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Ranks that sum within their node first have the bits of the tree over all.
TEST(Ranks, NodesThatSumFirstGiveOneRanksBits) {
  for (const auto& [ranks, node, rounds] : {std::tuple(4, 2, 1), {8, 2, 1}, {8, 4, 2}}) {
    for (const int zero : {0, 3}) {
      RanksCase at{ranks, zero, ranks, ranks * rounds, 1, places("pinned", "pinned", "pinned")};
      at.settings.push_back("parallel.node_ranks=" + std::to_string(node));
      expect_one_ranks_bits(at);
      if (HasFatalFailure()) return;
    }
  }
}

// Shards of rules that need whole tensors break at tensors, on any number of ranks.
TEST(Ranks, WholeTensorsStayTogether) {
  int next = 0;
  for (const char* rule : {"muon", "adafactor", "sm3"}) {
    for (const int ranks : {2, 3, 4, 8}) {
      const int zero = next++ % 4;
      if (samples_sweeps() && next % 5 != 1) continue;
      const char* family = next % 3 == 0 ? "model.family=llama" : "model.family=gpt2";
      const char* tier = next % 2 == 0 ? "pinned" : "storage";
      expect_one_ranks_bits(
          {ranks, zero, 1, ranks, 1,
           Overrides{std::string("optimizer.name=") + rule, family} + places(tier, tier, tier)});
      if (HasFatalFailure()) return;
    }
  }
}

// A rank that serves the others does what each of them would have done.
TEST(Ranks, AServerGivesOneRanksBits) {
  for (const int ranks : {2, 3, 4}) {
    const char* optimizer = ranks == 3 ? "optimizer.name=adafactor" : "optimizer.name=adamw";
    for (const auto& places_of :
         {places("device", "device", "device"), places("device", "pinned", "storage")}) {
      RanksCase at{ranks, 0, 1, ranks * (ranks == 2 ? 2 : 1), 1, Overrides{optimizer} + places_of};
      at.settings.push_back("parallel.server=true");
      expect_one_ranks_bits(at);
      if (HasFatalFailure()) return;
    }
  }
}

// --- the ring: outside law 1 ---------------------------------------------------------------------

RanksRun train_in_ring(const TrainingBench& bench, RanksCase at, const Overrides& more = {}) {
  at.settings = at.settings + Overrides{"parallel.reduction=ring", "train.order=microbatch"} + more;
  const Alone alone = train_alone(bench, at);
  schedule::StepOptions options = alone.options;
  const config::Config config = config_of(bench, at, at.ranks);
  planner::set_sums(config, options);
  options.exchange_lag = at.exchange_lag;
  options.placement.partial.assign(options.placement.weight.size(), at.partial);
  return train_on_ranks(config, options, kSteps);
}

// A sum of two parts has one order, so two ranks have the bits of two groups.
TEST(RingOfRanks, OfTwoHasTheBitsOfTwoGroups) {
  const TrainingBench bench;
  for (const int rounds : {1, 2}) {
    RanksCase at{2, 0, 2, 2 * rounds, 0, places("device", "device", "pinned")};
    const Alone tree = train_alone(bench, at);
    at.fold_groups = 1;
    const RanksRun run = train_in_ring(bench, at);
    for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, tree.record) << rounds;
    EXPECT_EQ(run.sent_bytes, run.planned_bytes);
  }
}

// The bits are those of the number of ranks, whatever else changes.
TEST(RingOfRanks, HasOneHashForANumberOfRanks) {
  const TrainingBench bench;
  std::set<std::string> hashes;
  for (const int ranks : {3, 4}) {
    RanksCase at{ranks, 0, 1, 2 * ranks, 0, places("device", "device", "device")};
    at.settings.push_back("train.precision=fp32");
    const RanksRun once = train_in_ring(bench, at);
    EXPECT_EQ(once.sent_bytes, once.planned_bytes);
    for (const RanksRecord& rank : once.ranks) EXPECT_EQ(rank, once.ranks.front());
    at.exchange_lag = 2;
    at.partial = Tier::kStorage;
    const RanksRun again = train_in_ring(bench, at, {"parallel.bucket=64KiB"});
    for (const RanksRecord& rank : again.ranks) EXPECT_EQ(rank, once.ranks.front());
    hashes.insert(once.ranks.front().weights_hash);
  }
  EXPECT_EQ(hashes.size(), 2u);
}

// A rank that fails ends the others' passes too, and they name it.
TEST(Ranks, ARankThatFailsEndsTheOthers) {
  const TrainingBench bench;
  RanksCase at;
  const Alone alone = train_alone(bench, at);
  const config::Config config = config_of(bench, at, at.ranks);
  std::vector<std::string> errors(2);
  EXPECT_THROW(train_on_ranks(
                   config, alone.options, kSteps,
                   [&](int rank, const std::exception& error) {
                     errors[static_cast<std::size_t>(rank)] = error.what();
                   },
                   /*failing_rank=*/1),
               Error);
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace sluice::train
