// The orders of pipelines: they can run, their bubbles and micro-batches in flight are those of the
// papers, and their messages cannot deadlock.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/rng.hpp"
#include "engine/schedule/orders/check_order.hpp"
#include "engine/schedule/orders/message_order.hpp"
#include "tests/engine/schedule/orders/order_examples.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// Calls f(shape) for each order, 1 to 16 ranks and up to 64 micro-batches.
template <typename F>
void for_shapes(F f) {
  for (const OrderKind kind : all_order_kinds()) {
    for (const std::int32_t stages_each : stage_counts_of(kind)) {
      for (std::int32_t ranks = 1; ranks <= 16; ++ranks) {
        for (const std::int32_t microbatches :
             {1, ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks + 1, 4 * ranks}) {
          if (microbatches > 0) f(PipelineShape{kind, ranks, stages_each, microbatches});
        }
      }
    }
  }
}

TEST(Orders, CanRunAndSumInTheOrderOfMicrobatches) {
  for_shapes([](const PipelineShape& shape) {
    const PipelineOrder order = order_of(shape);
    ASSERT_EQ(check_order(order), std::vector<std::string>{}) << name_of(shape);
    ASSERT_EQ(check_sum_order(order), "") << name_of(shape);
    ASSERT_EQ(order.microbatches, shape.microbatches);
    ASSERT_EQ(order.stages(), shape.ranks * shape.stages_each);
  });
}

// 1 to 16 ranks, 1, 2 and 4 stages on each, up to 64 micro-batches, and a grid of times.
TEST(Orders, HaveTheBubblesOfTheClosedForms) {
  std::size_t equal = 0;
  for_shapes([&](const PipelineShape& shape) {
    const PipelineOrder order = order_of(shape);
    for (const std::int64_t f : {1, 2, 5}) {
      for (const std::int64_t i : {1, 2, 5}) {
        for (const std::int64_t w : {1, 2, 5}) {
          const PassTimes times{f, i, w};
          const std::int64_t bubble = time_order(order, times).bubble();
          ASSERT_GE(bubble, 0);
          const std::optional<std::int64_t> closed = closed_bubble(shape, times);
          if (!closed) continue;
          ASSERT_EQ(bubble, *closed) << name_of(shape) << ", times " << f << " " << i << " " << w;
          ++equal;
        }
      }
    }
  });
  EXPECT_GT(equal, 10'000u);
}

// Figures by hand, so that a mistake in the closed forms shows.
TEST(Orders, HaveTheBubblesOfThePapersAtFourRanks) {
  const auto bubble = [](OrderKind kind, std::int32_t stages_each, const PassTimes& times) {
    return time_order(make_order(kind, 4, stages_each, 8), times).bubble();
  };
  EXPECT_EQ(bubble(OrderKind::kGPipe, 1, {1, 1, 1}), 9);
  EXPECT_EQ(bubble(OrderKind::k1F1B, 1, {1, 1, 1}), 9);
  EXPECT_EQ(bubble(OrderKind::kInterleaved, 2, {1, 1, 1}), 9);  // of stages half as long
  EXPECT_EQ(bubble(OrderKind::kVertical, 2, {1, 1, 1}), 9);
  EXPECT_EQ(bubble(OrderKind::kZbH1, 1, {1, 1, 1}), 3);
  EXPECT_EQ(bubble(OrderKind::kZbH2, 1, {1, 1, 1}), 0);
  EXPECT_EQ(bubble(OrderKind::kZbV, 2, {1, 1, 1}), 0);
  EXPECT_EQ(bubble(OrderKind::kZbH1, 1, {3, 4, 2}), 15);
  EXPECT_EQ(bubble(OrderKind::kZbH2, 1, {3, 4, 2}), 9);
  EXPECT_EQ(time_order(make_1f1b_order(4, 8), {}).makespan, 8 * 3 + 9);
}

// Two ranks, one micro-batch: forward 1 and 2, backward 4 and 5 in whole passes, messages of 10.
TEST(Orders, TimesOfStagesCountMessagesAndEarlyGradients) {
  std::vector<StageTimes> stages(2);
  stages[0] = {{1, 0, 4}, 0, 10};
  stages[1] = {{2, 2, 3}, 3, 99};  // after the last stage is no message
  const auto makespan = [&](const PipelineOrder& order) {
    return time_stages(order, stages).makespan;
  };
  EXPECT_EQ(makespan(make_gpipe_order(2, 1)), 1 + 10 + 2 + (5 - 3) + 10 + 4);
  stages[1].lead = 0;
  EXPECT_EQ(makespan(make_gpipe_order(2, 1)), 1 + 10 + 2 + 5 + 10 + 4);
  // The halves of a pass are apart, so the message leaves behind the first one.
  EXPECT_EQ(makespan(make_zb_h1_order(2, 1)), 1 + 10 + 2 + 2 + 10 + 4);
  for_shapes([](const PipelineShape& shape) {
    const PipelineOrder order = order_of(shape);
    StageTimes each;
    each.passes = {3, 4, 2};
    const std::vector<StageTimes> alike(order.rank_of_stage.size(), each);
    ASSERT_EQ(time_stages(order, alike).bubbles, time_order(order, each.passes).bubbles);
  });
}

TEST(Orders, KeepAsManyMicrobatchesInFlightAsTheClosedForms) {
  std::size_t equal = 0;
  for_shapes([&](const PipelineShape& shape) {
    const std::vector<std::int32_t> most = most_in_flight(order_of(shape));
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      const std::optional<std::int32_t> closed = closed_in_flight(shape, rank);
      if (!closed) continue;
      ASSERT_EQ(most[static_cast<std::size_t>(rank)], *closed)
          << name_of(shape) << ", rank " << rank;
      ++equal;
    }
  });
  EXPECT_GT(equal, 3'000u);
  EXPECT_EQ(most_in_flight(make_1f1b_order(4, 8)), (std::vector<std::int32_t>{4, 3, 2, 1}));
  EXPECT_EQ(most_in_flight(make_zb_h1_order(4, 8)), (std::vector<std::int32_t>{4, 4, 4, 4}));
  EXPECT_EQ(most_in_flight(make_zb_v_order(4, 8)), (std::vector<std::int32_t>{8, 8, 8, 8}));
}

TEST(Orders, HaveMessagesThatCannotDeadlockEvenOneByOne) {
  for_shapes([](const PipelineShape& shape) {
    const PipelineOrder listed = list_messages(order_of(shape));
    ASSERT_TRUE(runs_one_by_one(listed)) << name_of(shape);
    ASSERT_EQ(check_order(listed), std::vector<std::string>{}) << name_of(shape);
  });
}

// --- refusals ------------------------------------------------------------------------------------

std::string problems_of(const PipelineOrder& order) {
  std::string text;
  for (const std::string& problem : check_order(order)) text += problem + "\n";
  return text;
}

TEST(OrderCheck, NamesTheFault) {
  const PipelineOrder good = make_zb_h1_order(3, 4);
  const auto broken = [&](auto damage) {
    PipelineOrder order = good;
    damage(order);
    return problems_of(order);
  };
  using enum ActionKind;
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) { o.actions[1].erase(o.actions[1].begin()); }),
                    "no rank lists 1F0"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) {
                      o.actions[1].push_back({kForward, 1, 0});
                    }),
                    "rank 1 lists 1F0 twice"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) {
                      o.actions[1].push_back({kForward, 2, 0});
                    }),
                    "rank 1 lists 2F0, whose stage is of rank 2"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) {
                      o.actions[1].push_back({kForward, 1, 4});
                    }),
                    "a micro-batch that does not exist"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) {
                      o.actions[1].push_back({kForward, 3, 0});
                    }),
                    "a stage that does not exist"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) {
                      o.actions[0].push_back({kBackward, 0, 0});
                    }),
                    "listed whole and in halves"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) { o.rank_of_stage[2] = 3; }),
                    "stage 2 is of rank 3, which does not exist"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) { o.microbatches = 1 << 20; }), "actions for 3"));
  EXPECT_TRUE(holds(broken([](PipelineOrder& o) {
                      std::swap(o.actions[2][0], o.actions[2][1]);  // 2I0 before 2F0
                    }),
                    "stands before its forward pass"));
}

// Rank 1 waits for micro-batch 1 before it gives micro-batch 0 back, rank 0 the other way round.
TEST(OrderCheck, RefusesACircleOfPasses) {
  PipelineOrder order = make_1f1b_order(2, 2);
  using enum ActionKind;
  order.actions[0] = {{kForward, 0, 0}, {kBackward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 1}};
  EXPECT_EQ(problems_of(order), "");
  order.actions[1] = {{kForward, 1, 0}, {kForward, 1, 1}, {kBackward, 1, 0}, {kBackward, 1, 1}};
  EXPECT_TRUE(holds(problems_of(order), "rank 0 waits for ever at 0B0"));
}

TEST(OrderCheck, RefusesListedMessagesThatDoNotFit) {
  const PipelineOrder good = list_messages(make_1f1b_order(2, 2));
  const auto broken = [&](ActionKind kind, auto damage) {
    PipelineOrder order = good;
    for (std::vector<StageAction>& list : order.actions) {
      const auto at = std::find_if(list.begin(), list.end(),
                                   [&](const StageAction& a) { return a.kind == kind; });
      if (at == list.end()) continue;
      damage(list, at);
      break;
    }
    return problems_of(order);
  };
  using enum ActionKind;
  using List = std::vector<StageAction>;
  EXPECT_TRUE(holds(broken(kSendForward, [](List& list, auto at) { list.erase(at); }),
                    "no rank lists 0SEND_F0"));
  EXPECT_TRUE(holds(
      broken(kSendForward, [](List& list, auto at) { std::rotate(list.begin(), at, at + 1); }),
      "0SEND_F0 stands on the wrong side of its pass"));
  EXPECT_TRUE(holds(broken(kForward,
                           [](List& list, auto) {
                             list.push_back({kSendBackward, 0, 0});
                           }),
                    "0SEND_B0 crosses no ranks"));
  // Two receives that change places wait for each other's sends.
  EXPECT_TRUE(holds(broken(kReceiveForward,
                           [](List& list, auto at) {
                             const auto other = std::find_if(
                                 at + 1, list.end(),
                                 [](const StageAction& a) { return a.kind == kReceiveForward; });
                             const StageAction second = *other;
                             list.erase(other);
                             list.insert(list.begin(), second);
                           }),
                    "waits for ever"));
}

TEST(OrderCheck, NamesTheStageAndMicrobatchThatDescend) {
  PipelineOrder order = make_gpipe_order(2, 3);
  std::reverse(order.actions[0].begin() + 3, order.actions[0].end());
  std::reverse(order.actions[1].begin() + 3, order.actions[1].end());
  EXPECT_EQ(problems_of(order), "");
  EXPECT_TRUE(holds(check_sum_order(order),
                    "stage 0 adds the gradient of micro-batch 1 after that of micro-batch 2"));
}

// --- mutations -----------------------------------------------------------------------------------

// One damage: an action moved, dropped, listed twice or of another stage, micro-batch or kind.
PipelineOrder damaged(PipelineOrder order, const CounterRng& random, std::uint64_t seed) {
  std::uint64_t draw = seed * 16;
  const auto below = [&](std::size_t bound) { return random.below(draw++, bound); };
  std::vector<StageAction>& list = order.actions[below(order.actions.size())];
  const std::size_t at = below(list.size());
  const auto other = list.begin() + static_cast<std::ptrdiff_t>(below(list.size()));
  const auto victim = list.begin() + static_cast<std::ptrdiff_t>(at);
  switch (below(8)) {
    case 0:
      std::swap(*victim, *other);
      break;
    case 1:
      if (at + 1 < list.size()) std::swap(*victim, *(victim + 1));
      break;
    case 2:  // it moves to another place
      if (victim < other) std::rotate(victim, victim + 1, other + 1);
      if (other < victim) std::rotate(other, victim, victim + 1);
      break;
    case 3:
      list.erase(victim);
      break;
    case 4:
      list.insert(other, *victim);
      break;
    case 5:
      std::swap(victim->microbatch, other->microbatch);  // crossed tags
      break;
    case 6:
      std::swap(victim->stage, other->stage);
      break;
    default: {
      std::vector<StageAction>& theirs = order.actions[below(order.actions.size())];
      std::swap(*victim, theirs[below(theirs.size())]);  // a stage swapped
    }
  }
  return order;
}

// The order holds without its check: each pass once, on its rank, with all that it reads.
bool computes_a_step(const PipelineOrder& order) {
  std::size_t passes = 0;
  std::set<StageAction> seen;
  for (std::int32_t rank = 0; rank < order.ranks(); ++rank) {
    for (const StageAction& action : order.actions[static_cast<std::size_t>(rank)]) {
      if (!is_pass(action.kind)) continue;
      ++passes;
      if (order.rank_of(action.stage) != rank || !seen.insert(action).second) return false;
    }
  }
  std::size_t needed = 0;
  for (std::int32_t stage = 0; stage < order.stages(); ++stage) {
    for (std::int32_t k = 0; k < order.microbatches; ++k) {
      const bool whole = seen.contains({ActionKind::kBackward, stage, k});
      needed += whole ? 2 : 3;
      if (!seen.contains({ActionKind::kForward, stage, k})) return false;
    }
  }
  return passes == needed;
}

// An order that is accepted runs, by a machine that shares no code with the check: where messages
// are left to us, with those that place_messages makes.
TEST(OrderMutations, NoneThatIsAcceptedDeadlocksOrLacksAPass) {
  const CounterRng random(27, stream_of("test/order_mutations"));
  std::size_t made = 0;
  std::size_t refused = 0;
  for (const OrderKind kind : all_order_kinds()) {
    for (std::int32_t ranks = 2; ranks <= 4; ++ranks) {
      const PipelineShape shape{
          kind, ranks, stage_counts_of(kind).size() > 1 ? 2 : stage_counts_of(kind)[0], ranks + 1};
      for (std::uint64_t seed = 0; seed < sweep(200); ++seed) {
        const bool listed = seed % 2 == 0;
        const PipelineOrder original = order_of(shape);
        const PipelineOrder mutant =
            damaged(listed ? list_messages(original) : original, random, made++);
        if (!check_order(mutant).empty()) {
          ++refused;
          continue;
        }
        ASSERT_TRUE(computes_a_step(mutant)) << name_of(shape);
        ASSERT_TRUE(runs_one_by_one(list_messages(mutant))) << name_of(shape) << ", seed " << seed;
      }
    }
  }
  EXPECT_GE(made, sweep(500));
  EXPECT_GT(refused, made / 2);
  EXPECT_LT(refused, made);
  std::printf("%zu orders damaged, %zu refused\n", made, refused);
}

// The versions of the papers: w(t - p + s + 1) on stage s, w(t - p + 1) on all, and the last but
// one.
TEST(DelayedOrders, ReadTheVersionsOfTheirRules) {
  for (std::int32_t p = 1; p <= 8; ++p) {
    for (const std::int32_t updates : {1, 2, p, 3 * p}) {
      const PipelineOrder stashing = make_delayed_order(DelayRule::kStashing, p, 1, updates);
      const PipelineOrder vertical = make_delayed_order(DelayRule::kVerticalSync, p, 1, updates);
      const std::int32_t each = p + 1;
      const PipelineOrder buffered =
          make_delayed_order(DelayRule::kDoubleBuffered, p, each, updates);
      for (const PipelineOrder* order : {&stashing, &vertical, &buffered}) {
        ASSERT_EQ(check_order(*order), std::vector<std::string>{});
        ASSERT_EQ(check_sum_order(*order), "");
      }
      for (std::int32_t stage = 0; stage < p; ++stage) {
        for (std::int32_t k = 0; k < updates; ++k) {
          ASSERT_EQ(stashing.version_of(stage, k), std::max(k - (p - stage - 1), 0));
          ASSERT_EQ(vertical.version_of(stage, k), std::max(k - (p - 1), 0));
        }
        for (std::int32_t k = 0; k < buffered.microbatches; ++k) {
          ASSERT_EQ(buffered.version_of(stage, k), std::max(k / each - 1, 0));
        }
      }
    }
  }
}

TEST(DelayedOrders, KeepAsManyVersionsAsTheirRulesSay) {
  for (std::int32_t p = 2; p <= 16; ++p) {
    const auto stashing = most_live_versions(make_delayed_order(DelayRule::kStashing, p, 1, 3 * p));
    const auto vertical =
        most_live_versions(make_delayed_order(DelayRule::kVerticalSync, p, 1, 3 * p));
    const auto buffered =
        most_live_versions(make_delayed_order(DelayRule::kDoubleBuffered, p, p, 4));
    for (std::int32_t stage = 0; stage < p; ++stage) {
      const auto at = static_cast<std::size_t>(stage);
      EXPECT_EQ(stashing[at], p - stage);
      EXPECT_EQ(vertical[at], p);
      EXPECT_EQ(buffered[at], 2);
    }
  }
}

TEST(DelayedOrders, RefuseAVersionThatIsNotMadeYet) {
  PipelineOrder order = make_delayed_order(DelayRule::kStashing, 3, 1, 6);
  ASSERT_TRUE(check_order(order).empty());
  ++order.versions[order.place_of(1, 3)];
  const std::vector<std::string> problems = check_order(order);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems.front(), "1F3 reads version 3 of its stage's weights, which has 2 by then");
  order = make_delayed_order(DelayRule::kDoubleBuffered, 3, 3, 2);
  order.updates = 4;
  EXPECT_FALSE(check_order(order).empty());
}

}  // namespace
}  // namespace sluice::schedule
