// Plans for several data-parallel ranks: every rank's share fits, the bytes between them are those
// of the formulas, and what cannot be is refused with a change that can.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/config/schema.hpp"
#include "engine/planner/choice/options_text.hpp"
#include "engine/planner/price/rank_links.hpp"
#include "engine/planner/world_digest.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/random_training.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/thrown.hpp"
#include "tests/support/whole_world.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

struct World {
  std::int64_t ranks = 2;
  std::int64_t zero = 3;
  std::int64_t accumulate = 2;
  std::int64_t groups = 1;
};

Overrides world_settings(const World& world) {
  return {setting("parallel.data", world.ranks), setting("parallel.zero", world.zero),
          setting("train.accumulate", world.accumulate),
          setting("train.fold_groups", world.groups)};
}

Overrides rank_model() {
  return {"model.family=gpt2", "model.layers=3",      "model.hidden=128",
          "model.heads=4",     "model.vocab=1000",    "train.seq=32",
          "train.steps=2",     "train.micro_batch=2", "model.max_seq=32"};
}

// For tests of many plans, whose search is not the point.
Overrides few_choices() {
  return {"recompute.policy=none", "optimizer.placement=after_backward",
          "memory.place.optimizer=pinned", "memory.place.activation=device"};
}

std::string text_of(const World& world) {
  return std::to_string(world.ranks) + " ranks, stage " + std::to_string(world.zero) + ", " +
         std::to_string(world.accumulate) + " micro-batches, " + std::to_string(world.groups) +
         " groups";
}

config::Config config_of(const World& world, const Overrides& more = {}) {
  static const TrainingBench bench;
  return bench.config("run", rank_model() + world_settings(world) + more);
}

Plan plan_of(const config::Config& config) {
  auto result = planned(config);
  if (const auto* refusal = std::get_if<Refusal>(&result)) throw InputError(refusal->sentence());
  return std::get<Plan>(std::move(result));
}

Plan plan_of_rank(const config::Config& config, const schedule::StepOptions& options,
                  std::int32_t rank) {
  static const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  return plan_rank(config, model::Model(config::model_shape(config)), *kernels, HardwareProfile{},
                   options, rank);
}

std::vector<World> worlds() {
  std::vector<World> list;
  for (const std::int64_t ranks : {2, 3, 4, 8}) {
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      for (const std::int64_t rounds : {1, 2}) {
        list.push_back({ranks, zero, ranks * rounds, 1});
        list.push_back({ranks, zero, ranks * rounds, ranks});
      }
    }
  }
  return list;
}

std::uint64_t elems_of(const Plan& plan) {
  std::uint64_t elems = 0;
  for (const auto& shards : plan.view.shards) elems += shards.back().end;
  return elems;
}

// 8 for each norm block of 4,096 elements of each tensor.
std::uint64_t norm_bytes(const Plan& plan) {
  for (const schedule::Buffer& buffer : plan.training().buffers) {
    if (buffer.role == schedule::BufferRole::kNormPartial && buffer.persistent) return buffer.bytes;
  }
  return 0;
}

// Elements that all fetches of one rank gather in a step.
std::uint64_t gathered_elems(const Plan& plan) {
  std::uint64_t elems = 0;
  for (const schedule::Instruction& instruction : plan.training().instructions) {
    if (instruction.op != schedule::Op::kGather || instruction.unit < 0) continue;
    elems += plan.view.shards[static_cast<std::size_t>(instruction.unit)].back().end;
  }
  return elems;
}

// The formulas of docs/design/ranks.md, times the number of ranks.
TEST(RankPlans, SendTheBytesOfTheFormulas) {
  for (const World& world : worlds()) {
    for (const char* order : {"train.order=microbatch", "train.order=unit"}) {
      SCOPED_TRACE(text_of(world) + ", " + order);
      const Plan plan = plan_of(config_of(world, few_choices() + Overrides{order}));
      ASSERT_EQ(plan.ranks.size(), static_cast<std::size_t>(world.ranks));
      SentBytes sent;
      std::uint64_t received = 0;
      for (const RankFigures& rank : plan.ranks) {
        sent.gradients += rank.sent.gradients;
        sent.weights += rank.sent.weights;
        sent.norm += rank.sent.norm;
        received += rank.received_bytes;
      }
      const auto others = static_cast<std::uint64_t>(world.ranks - 1);
      const auto rounds = static_cast<std::uint64_t>(world.accumulate / world.ranks);
      const std::uint64_t w = world.groups == 1 ? 2 * rounds : rounds == 1 ? 2 : 4;
      const std::uint64_t tied = plan.view.shards.back().back().end;
      const std::uint64_t elems = elems_of(plan);
      const std::uint64_t rounded = world.zero == 0 ? 2 * (elems - tied) : 0;
      EXPECT_EQ(sent.gradients, others * (elems * w + rounded));
      if (world.zero == 0) {
        EXPECT_EQ(sent.weights, 0u);
      } else if (world.zero < 3) {
        EXPECT_EQ(sent.weights, others * 2 * (elems - tied));
      } else {
        EXPECT_EQ(sent.weights, others * 2 * gathered_elems(plan));
      }
      EXPECT_EQ(sent.norm, others * norm_bytes(plan));
      EXPECT_EQ(sent.total(), received);
    }
  }
}

// One micro-batch for each rank, 16-bit weights and gradients, AdamW: 4 + 12 bytes for each
// parameter, or 4 + 10 with a split master.
TEST(RankPlans, KeepTheStateBytesOfTheStage) {
  for (const bool split : {false, true}) {
    const std::uint64_t kept = split ? 10 : 12;
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
      for (std::int64_t zero = 0; zero <= 3; ++zero) {
        const World world{ranks, zero, ranks, 1};
        SCOPED_TRACE(text_of(world));
        const Plan plan =
            plan_of(config_of(world, few_choices() + Overrides{split ? "optimizer.states=split"
                                                                     : "optimizer.states=fp32"}));
        const std::uint64_t psi = elems_of(plan) - plan.view.shards.back().back().end;
        const std::uint64_t whole = zero == 0 ? 4 + kept : zero == 3 ? 0 : 2;
        const std::uint64_t sharded = 4 + kept - whole;
        const std::uint64_t even = whole * psi + sharded * psi / static_cast<std::uint64_t>(ranks);
        const std::uint64_t blocks = sharded * kLawBlockElems * (plan.view.shards.size() - 1);
        for (const RankFigures& rank : plan.ranks) {
          EXPECT_LE(rank.state_bytes, even + blocks) << rank.rank;
          EXPECT_GE(rank.state_bytes + blocks, even) << rank.rank;
        }
        EXPECT_EQ(plan.ranks.front().state_bytes, plan.state_bytes);
      }
    }
  }
}

// Each rank compiles the options that rank 0 chose and needs what the plan says of it.
TEST(RankPlans, AreWhatEachRankCompiles) {
  for (const char* rule : {"optimizer.name=adamw", "optimizer.name=muon"}) {
    for (const World& world : {World{2, 3, 4, 1}, World{3, 2, 3, 1}, World{4, 3, 8, 4},
                               World{4, 0, 4, 1}, World{8, 1, 8, 8}}) {
      SCOPED_TRACE(text_of(world) + ", " + rule);
      const config::Config config = config_of(world, {rule});
      const Plan plan = plan_of(config);
      const auto options = options_from_text(options_text(plan.options));
      std::vector<Plan> ranks;
      std::set<std::string> digests{world_digest(plan, config)};
      for (std::int32_t rank = 0; rank < world.ranks; ++rank) {
        ranks.push_back(plan_of_rank(config, options, rank));
        digests.insert(world_digest(ranks.back(), config));
        const RankFigures& figures = plan.ranks[static_cast<std::size_t>(rank)];
        EXPECT_EQ(ranks.back().peak_bytes, figures.peak_bytes);
        EXPECT_EQ(ranks.back().state_bytes, figures.state_bytes);
        EXPECT_EQ(ranks.back().ranks.front().sent, figures.sent);
      }
      EXPECT_EQ(digests.size(), 1u);
      expect_world_holds(ranks, config);
    }
  }
}

TEST(WorldDigest, TellsApartWhatRanksMustAgreeOn) {
  const config::Config config = config_of({2, 3, 2, 1});
  const Plan plan = plan_of_rank(config, plan_of(config).options, 1);
  const std::string digest = world_digest(plan, config);
  std::set<std::string> digests{digest};
  const auto expect_new = [&](const std::string& other) {
    EXPECT_TRUE(digests.insert(other).second);
  };
  expect_new(world_digest(plan, config_of({2, 3, 2, 1}, {"train.seed=7"})));
  Plan changed = plan;
  ++changed.options.prefetch;
  expect_new(world_digest(changed, config));
  changed = plan;
  changed.view.zero_stage = 2;
  expect_new(world_digest(changed, config));
  changed = plan;
  auto& list = changed.schedules[schedule::StepKind::kEvaluation].instructions;
  const auto gathers = [](const schedule::Instruction& instruction) {
    return instruction.op == schedule::Op::kGather;
  };
  const auto first = std::find_if(list.begin(), list.end(), gathers);
  const auto second = std::find_if(first + 1, list.end(), gathers);
  ASSERT_NE(second, list.end());
  std::swap(*first, *second);
  expect_new(world_digest(changed, config));
  list.erase(second);
  expect_new(world_digest(changed, config));
  // Where a run writes and how many threads it has decide nothing.
  EXPECT_EQ(world_digest(plan, config_of({2, 3, 2, 1}, {"log.dir=elsewhere", "train.threads=3"})),
            digest);
}

TEST(RankPlans, RefuseOptionsOfAnotherStep) {
  const config::Config config = config_of({2, 2, 4, 1});
  const schedule::StepOptions right = plan_of(config).options;
  const auto refused = [&](const auto& change) {
    schedule::StepOptions options = right;
    change(options);
    EXPECT_THROW(plan_of_rank(config, options, 1), InputError);
  };
  refused([](auto& options) { options.microbatches = 2; });
  refused([](auto& options) { options.placement.weight.pop_back(); });
  refused([](auto& options) { options.placement.weight.front() = Tier::kPinned; });
  refused([](auto& options) { options.recompute.units.assign(2, {}); });
  refused([](auto& options) { options.chunk_bytes *= 2; });
  refused([](auto& options) { options.turns = 2; });
}

// Budgets from hopeless to ample, any stage and number of ranks.
TEST(RankPlans, AreAcceptedOrRefusedWithAChangeThatFits) {
  static const TrainingBench bench;
  std::size_t accepted = 0;
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < sweep(40); ++seed) {
    Draws draw(seed, "test/rank_plans");
    const auto ranks = draw.pick<std::int64_t>({2, 3, 4, 8});
    const World world{ranks, static_cast<std::int64_t>(draw.below(4)),
                      ranks * (1 + static_cast<std::int64_t>(draw.below(3))),
                      draw.chance(2) ? ranks : 1};
    SCOPED_TRACE(std::to_string(seed) + ": " + text_of(world));
    config::Config config = bench.config("run", random_model(draw) + Overrides{"train.steps=2"} +
                                                    world_settings(world) + random_movement(draw) +
                                                    random_budgets(draw));
    const auto result = planned(config);
    if (const auto* plan = std::get_if<Plan>(&result)) {
      ++accepted;
      EXPECT_LE(plan->bound_s, plan->simulation.total_s * (1 + 1e-9));
      for (const RankFigures& rank : plan->ranks) {
        EXPECT_LE(rank.peak_bytes[0], config.memory.device_bytes);
        EXPECT_LE(rank.peak_bytes[1], config.memory.pinned_bytes);
        EXPECT_LE(rank.peak_bytes[2], config.memory.storage_bytes);
      }
      continue;
    }
    ++refused;
    for (const Suggestion& suggestion : std::get<Refusal>(result).suggestions) {
      config::Config more = config;
      for (const auto& [key, bytes] : suggestion) {
        config::find_config_key(key)->assign(more, static_cast<std::int64_t>(bytes));
      }
      EXPECT_TRUE(std::holds_alternative<Plan>(planned(more)))
          << std::get<Refusal>(result).sentence();
    }
  }
  EXPECT_GE(accepted, sweep(40) / 5);
  EXPECT_GE(refused, sweep(40) / 5);
}

// Below stage 3 the weights of all units must find room on each device.
TEST(RankPlans, ARefusalBelowStageThreeSuggestsIt) {
  const Overrides tight{"memory.device=12MiB", "model.layers=12", "recompute.policy=unit"};
  for (const std::int64_t zero : {0, 2}) {
    const config::Config config = config_of({4, zero, 4, 1}, tight);
    const train::Prepared prepared =
        train::prepare(config, HardwareProfile{}, train::PlannedMachine::kThis);
    ASSERT_NE(prepared.refusal(), nullptr);
    EXPECT_TRUE(holds(prepared.refusal()->sentence(), "use parallel.zero = 3"))
        << prepared.refusal()->sentence();
  }
  EXPECT_NO_THROW(plan_of(config_of({4, 3, 4, 1}, tight)));
  for (const char* kind : {"weight", "gradient"}) {
    const Overrides pinned{std::string("memory.place.") + kind + "=pinned"};
    const std::string words = message_of<InputError>([&] {
      plan_of(config_of({2, 0, 2, 1}, pinned));
    });
    EXPECT_TRUE(holds(words, "use parallel.zero = 3")) << words;
    EXPECT_NO_THROW(plan_of(config_of({2, 3, 2, 1}, pinned)));
  }
}

TEST(RankPlans, OfTooManyRanksAreRefused) {
  const std::string words = message_of<InputError>([&] { plan_of(config_of({65, 3, 65, 1})); });
  EXPECT_TRUE(holds(words, "at most 64 ranks")) << words;
}

// With groups a rank sums its micro-batches in fp32 before it exchanges them. In the order "unit"
// the sum of one unit waits at a time.
TEST(RankPlans, PartialSumsOfAllUnitsNeedNotLieOnTheDevice) {
  const World world{2, 3, 8, 2};
  const Overrides deep{"model.layers=12", "memory.device=14MiB", "recompute.policy=unit"};
  const Overrides by_microbatch = deep + Overrides{"train.order=microbatch"};
  const Plan plan = plan_of(config_of(world, deep));
  EXPECT_GT(4 * elems_of(plan), 9 * kMiB);
  EXPECT_TRUE(plan.options.order == schedule::ComputeOrder::kUnit ||
              plan.options.placement.partial_of(0) != Tier::kDevice);
  EXPECT_THROW(plan_of(config_of(world, by_microbatch + Overrides{"memory.place.partial=device"})),
               InputError);
  // The planner takes a lower tier that has room.
  const Plan auto_plan = plan_of(config_of(world, by_microbatch));
  EXPECT_EQ(auto_plan.options.placement.partial_of(0), Tier::kPinned);
  const std::uint64_t pinned = auto_plan.peak_bytes[1];
  const Plan stored = plan_of(config_of(world, by_microbatch + Overrides{"memory.pinned=7MiB"}));
  EXPECT_GT(pinned, 9 * kMiB);
  EXPECT_EQ(stored.options.placement.partial_of(0), Tier::kStorage);
  for (const Plan* other : {&auto_plan, &stored}) {
    EXPECT_LE(other->bound_s, other->simulation.total_s * (1 + 1e-9));
    const config::Config config = config_of(world, by_microbatch);
    EXPECT_EQ(plan_of_rank(config, options_from_text(options_text(other->options)), 1)
                  .ranks.front()
                  .peak_bytes,
              other->ranks[1].peak_bytes);
  }
}

// Named by the configuration, the sums lie there and only their moves change.
TEST(RankPlans, PartialSumsLieWhereTheyAreNamed) {
  const World world{2, 2, 8, 4};
  std::vector<TierBytes> peaks;
  for (const char* place : {"device", "pinned", "storage"}) {
    const Plan plan = plan_of(config_of(
        world, few_choices() + Overrides{std::string("memory.place.partial=") + place,
                                         "train.order=microbatch", "memory.place.gradient=pinned",
                                         "memory.prefetch=0"}));
    peaks.push_back(plan.peak_bytes);
    const std::uint64_t sums = 2 * 4 * elems_of(plan);  // of one group that is complete, and one
    const std::size_t tier = peaks.size() - 1;
    EXPECT_GE(peaks[tier][tier], sums);
  }
  const auto more = [&](std::size_t tier, std::size_t other) {
    return peaks[tier][tier] - peaks[other][tier];
  };
  for (const auto& [tier, other] : {std::pair(0, 1), {1, 2}, {2, 1}}) {
    EXPECT_GE(more(static_cast<std::size_t>(tier), static_cast<std::size_t>(other)), 4 * kMiB);
  }
}

// Another number of groups changes bits, so a refusal only advises it.
TEST(RankPlans, ARefusalForSumsOfGroupsAdvisesOneSum) {
  const config::Config config =
      config_of({2, 3, 8, 2}, {"model.layers=12", "memory.device=14MiB", "recompute.policy=unit",
                               "train.order=microbatch", "memory.place.partial=device"});
  const train::Prepared prepared =
      train::prepare(config, HardwareProfile{}, train::PlannedMachine::kThis);
  ASSERT_NE(prepared.refusal(), nullptr);
  const auto& changes = prepared.refusal()->other_changes;
  const auto advised = std::find_if(changes.begin(), changes.end(), [](const OtherChange& change) {
    return change.settings.front() == std::pair<std::string, std::string>{"train.fold_groups", "1"};
  });
  ASSERT_NE(advised, changes.end());
  EXPECT_TRUE(advised->changes_results);
}

TEST(RankPlans, RefuseAPlaceOfSumsThatNoRankHas) {
  for (const World& world : {World{2, 3, 8, 1}, World{2, 3, 2, 2}}) {
    const std::string words =
        message_of<InputError>([&] { config_of(world, {"memory.place.partial=pinned"}); });
    EXPECT_TRUE(holds(words, "memory.place.partial has no meaning")) << words;
  }
}

// Shards of whole tensors: ranks together keep one rank's state, about evenly, and send the
// formulas' bytes.
TEST(RankPlans, OfRulesForWholeTensorsDivideTheirState) {
  for (const char* rule :
       {"optimizer.name=muon", "optimizer.name=adafactor", "optimizer.name=sm3"}) {
    const Overrides settings = few_choices() + Overrides{rule, "model.layers=6"};
    // Sums lie as those of ranks do where ranks may go on from a run.
    const Plan alone =
        plan_of(config_of({1, 0, 1, 1}, settings + Overrides{"checkpoint.mode=durable"}));
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
      const World world{ranks, 3, ranks, 1};
      SCOPED_TRACE(text_of(world) + ", " + rule);
      const Plan plan = plan_of(config_of(world, settings));
      std::uint64_t state = 0;
      std::uint64_t gradients = 0;
      std::uint64_t most = 0;
      for (const RankFigures& rank : plan.ranks) {
        state += rank.state_bytes;
        gradients += rank.sent.gradients;
        most = std::max(most, rank.state_bytes);
      }
      const std::uint64_t tied = plan.view.shards.back().back().end;
      // Alone, the gradient of the tied use has a home of its own.
      EXPECT_EQ(state, alone.state_bytes - 2 * tied);
      EXPECT_EQ(gradients, static_cast<std::uint64_t>(ranks - 1) * 2 * elems_of(plan));
      // The largest tensor, the embedding, is a sixth of the model.
      EXPECT_LE(most, alone.state_bytes /
                          static_cast<std::uint64_t>(std::min<std::int64_t>(ranks, 4)) * 5 / 4);
    }
  }
}

// A plan may state more than its schedules need, so that it fits the budgets of its own peaks.
TEST(RankPlans, StateTheFirstRanksPeaksOnce) {
  const Overrides settings{"model.layers=20",       "model.hidden=768",
                           "model.heads=16",        "train.seq=256",
                           "model.max_seq=256",     "train.precision=bf16",
                           "recompute.policy=unit", "memory.device=90MiB",
                           "memory.pinned=70MiB",   "model.tie_embeddings=true",
                           "memory.storage=700MiB", "train.micro_batch=1"};
  const Plan plan = plan_of(config_of({4, 3, 4, 1}, settings));
  EXPECT_EQ(plan.ranks.front().peak_bytes, plan.peak_bytes);
  EXPECT_NE(plan.ranks.front().peak_bytes, plan.ranks[1].peak_bytes);
}

// A server's state and bytes, as the plan has them.
TEST(RankPlans, OfAServerHaveItsState) {
  const Overrides settings = few_choices() + Overrides{"parallel.server=true"};
  const Plan plan = plan_of(config_of({4, 0, 4, 1}, settings));
  const std::uint64_t tied = plan.view.shards.back().back().end;
  const std::uint64_t psi = elems_of(plan) - tied;
  for (const RankFigures& rank : plan.ranks) {
    const bool serves = rank.rank == 0;
    EXPECT_EQ(rank.state_bytes, serves ? 16 * psi : 2 * psi);
    EXPECT_EQ(rank.sent.gradients, serves ? 0 : 2 * (psi + tied));
    EXPECT_EQ(rank.sent.weights, serves ? 3 * 2 * psi : 0);
  }
  EXPECT_THROW(config_of({4, 1, 4, 1}, {"parallel.server=true"}), InputError);
}

// Nodes that sum first send less over a slow network, and the plan knows it.
TEST(RankPlans, OfNodesThatSumFirstAreFasterOverASlowNetwork) {
  HardwareProfile hardware;
  hardware.rank_links = RankLinks{};
  hardware.rank_links->node_ranks = 4;
  hardware.rank_links->network_bytes_per_s = 1e6;
  std::vector<double> seconds;
  for (const char* node : {"parallel.node_ranks=0", "parallel.node_ranks=4"}) {
    const config::Config config =
        config_of({8, 2, 16, 8}, few_choices() + Overrides{node, "train.order=microbatch"});
    const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
    const auto result =
        make_plan(config, model::Model(config::model_shape(config)), *kernels, hardware);
    const Plan& plan = std::get<Plan>(result);
    EXPECT_LE(plan.bound_s, plan.simulation.total_s * (1 + 1e-9));
    seconds.push_back(plan.simulation.total_s);
  }
  EXPECT_LT(seconds[1], 0.8 * seconds[0]);
  for (const Overrides& wrong :
       {Overrides{"parallel.node_ranks=3"}, Overrides{"parallel.node_ranks=16"},
        Overrides{"train.fold_groups=1", "parallel.node_ranks=4"}}) {
    EXPECT_THROW(config_of({8, 2, 16, 8}, wrong), InputError);
  }
}

TEST(RankPlans, OfARingSendTheBytesOfTheFormulas) {
  const Overrides settings = few_choices() + Overrides{"parallel.reduction=ring"};
  for (const World& world : {World{2, 0, 4, 1}, World{3, 0, 3, 1}, World{8, 0, 16, 1}}) {
    SCOPED_TRACE(text_of(world));
    const Plan plan = plan_of(config_of(world, settings));
    EXPECT_EQ(plan.options.sum, schedule::GradientSum::kRing);
    const std::uint64_t tied = plan.view.shards.back().back().end;
    const std::uint64_t elems = elems_of(plan);
    std::uint64_t sent = 0;
    for (const RankFigures& rank : plan.ranks) sent += rank.sent.gradients;
    EXPECT_EQ(sent, static_cast<std::uint64_t>(world.ranks - 1) * (4 * elems + 2 * (elems - tied)));
    EXPECT_LE(plan.bound_s, plan.simulation.total_s * (1 + 1e-9));
  }
  for (const Overrides& wrong : {Overrides{"parallel.zero=1"}, Overrides{"train.fold_groups=2"},
                                 Overrides{"parallel.server=true"}}) {
    EXPECT_THROW(config_of({2, 0, 4, 1}, settings + wrong), InputError);
  }
}

TEST(RankLinks, PriceACollectiveByLatencyBytesAndSharing) {
  RankLinks links;
  links.latency_s = 1e-5;
  links.bytes_per_s = 1e9;
  links.node_bytes_per_s = 0;
  links.network_latency_s = 1e-4;
  links.network_bytes_per_s = 2e9;
  EXPECT_EQ(links.collective_s(1, 1e9), 0);
  EXPECT_NEAR(links.collective_s(4, 3e6), 3 * 1e-5 + 3e-3, 1e-12);
  links.node_bytes_per_s = 2e9;  // of four ranks, so half a GB/s for each
  EXPECT_NEAR(links.collective_s(4, 3e6), 3 * 1e-5 + 6e-3, 1e-12);
  links.node_ranks = 2;  // a neighbour, and two ranks over a network that two ranks share
  EXPECT_NEAR(links.collective_s(4, 3e6), 2 * 1e-4 + 2e-3, 1e-12);
  EXPECT_NEAR(links.byte_s(4), 2.0 / 3 / 1e9, 1e-18);
}

}  // namespace
}  // namespace sluice::planner
