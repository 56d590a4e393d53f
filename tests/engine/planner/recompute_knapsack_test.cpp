// The knapsack equals an enumeration of all choices.
#include "engine/planner/bound/recompute_knapsack.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/rng.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::planner {
namespace {

// Up to six units in one to three classes of up to six options, two phases of up to three
// resources.
Knapsack drawn_knapsack(std::uint64_t seed) {
  const CounterRng random(seed, stream_of("test/knapsack"));
  std::uint64_t drawn = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(drawn++, bound); };
  Knapsack knapsack;
  if (below(2) == 0) knapsack.work_weight = 0.125;
  for (std::size_t i = 0; i < 2 + below(4); ++i) {
    knapsack.resources.push_back({i % 2, 0.25 * static_cast<double>(below(40))});
  }
  std::int64_t units = static_cast<std::int64_t>(1 + below(6));
  while (units > 0) {
    Knapsack::UnitClass of;
    of.count = static_cast<std::int64_t>(1 + below(static_cast<std::uint64_t>(units)));
    if (knapsack.classes.size() == 2) of.count = units;
    units -= of.count;
    of.options.resize(1 + below(6));
    for (Knapsack::Option& option : of.options) {
      for (std::uint64_t& bytes : option.bytes) bytes = below(2) * below(50);
      for (std::size_t k = 0; k < knapsack.resources.size(); ++k) {
        option.seconds.push_back(static_cast<double>(below(2) * below(9)));
      }
    }
    knapsack.classes.push_back(std::move(of));
  }
  for (std::uint64_t& budget : knapsack.budgets) budget = below(150);
  // Small numbers or those of real models; a budget of nothing among them.
  const std::uint64_t unit = std::uint64_t{1} << (26 * below(2));
  for (Knapsack::UnitClass& of : knapsack.classes) {
    for (Knapsack::Option& option : of.options) {
      for (std::uint64_t& bytes : option.bytes) bytes *= unit;
    }
  }
  for (std::uint64_t& budget : knapsack.budgets) budget *= below(4) == 0 ? 0 : unit;
  return knapsack;
}

double enumerated_s(const Knapsack& knapsack) {
  double least_s = std::numeric_limits<double>::infinity();
  Knapsack::Counts counts;
  for (const Knapsack::UnitClass& of : knapsack.classes) counts.emplace_back(of.options.size());
  // Adds up by itself, unit by unit.
  const auto weigh = [&] {
    TierBytes bytes{};
    double work_s = 0;
    std::vector<double> resource_s;
    for (const Knapsack::Resource& resource : knapsack.resources) {
      resource_s.push_back(resource.fixed_s);
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (std::size_t k = 0; k < counts[i].size(); ++k) {
        const Knapsack::Option& option = knapsack.classes[i].options[k];
        for (std::int64_t unit = 0; unit < counts[i][k]; ++unit) {
          for (std::size_t tier = 0; tier < kTierCount; ++tier) bytes[tier] += option.bytes[tier];
          for (std::size_t r = 0; r < resource_s.size(); ++r) {
            resource_s[r] += option.seconds[r];
            work_s += option.seconds[r];
          }
        }
      }
    }
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      if (bytes[tier] > knapsack.budgets[tier]) return;
    }
    double phase_s[2] = {0, 0};
    for (std::size_t r = 0; r < resource_s.size(); ++r) {
      double& phase = phase_s[knapsack.resources[r].phase];
      phase = std::max(phase, resource_s[r]);
    }
    least_s = std::min(least_s, phase_s[0] + phase_s[1] + knapsack.work_weight * work_s);
  };
  const std::function<void(std::size_t, std::size_t, std::int64_t)> split =
      [&](std::size_t i, std::size_t option, std::int64_t left) {
        if (i == counts.size()) return weigh();
        if (option + 1 == counts[i].size()) {
          counts[i][option] = left;
          const bool last = i + 1 == counts.size();
          return split(i + 1, 0, last ? 0 : knapsack.classes[i + 1].count);
        }
        for (counts[i][option] = 0; counts[i][option] <= left; ++counts[i][option]) {
          split(i, option + 1, left - counts[i][option]);
        }
      };
  split(0, 0, knapsack.classes.front().count);
  return least_s;
}

TEST(RecomputeKnapsack, EqualsEnumeration) {
  int possible = 0;
  for (std::uint64_t seed = 0; seed < testing::sweep(1000); ++seed) {
    SCOPED_TRACE(seed);
    const Knapsack knapsack = drawn_knapsack(seed);
    const double least_s = enumerated_s(knapsack);
    const auto choice = knapsack.solve(0, std::numeric_limits<std::size_t>::max());
    ASSERT_EQ(choice.has_value(), least_s < std::numeric_limits<double>::infinity());
    if (!choice) continue;
    ++possible;
    ASSERT_NEAR(choice->seconds, least_s, 1e-9);
    ASSERT_TRUE(knapsack.fits(choice->counts));
    ASSERT_EQ(knapsack.seconds_of(choice->counts), choice->seconds);
  }
  if (!testing::kSanitized) {
    EXPECT_GT(possible, 500);
  }
}

// 48 units with the options of a block settle at once within a thousandth.
TEST(RecomputeKnapsack, ManyEqualUnitsTakeFewNodes) {
  Knapsack knapsack;
  knapsack.resources = {{0, 1.0}, {1, 2.0}, {0, 0.1}, {1, 0.3}};
  Knapsack::UnitClass of;
  of.count = 48;
  for (const double remade : {0.0, 0.2, 0.4, 0.7, 1.0}) {
    const auto kept = static_cast<std::uint64_t>((1 - remade) * 100e6);
    const double seconds = 0.02 * remade * remade;
    of.options.push_back({{kept, 0, 0}, {0, seconds, 0, 0}});
    of.options.push_back(
        {{0, kept, 0},
         {0, seconds, 4e-10 * static_cast<double>(kept), 4e-10 * static_cast<double>(kept)}});
  }
  knapsack.classes = {of};
  for (std::uint64_t budget = 0; budget < 5'000'000'000; budget += 123'456'789) {
    knapsack.budgets = {budget, 2'000'000'000, 0};
    const auto few = knapsack.solve(1e-3, 50);
    const auto exact = knapsack.solve(0, 20'000);
    ASSERT_TRUE(few.has_value());
    EXPECT_LE(few->seconds, exact->seconds * 1.001) << budget;
  }
}

}  // namespace
}  // namespace sluice::planner
