// The dynamic programme of a chain equals an exhaustive search over persistent schedules.
#include "engine/planner/choice/chain_recompute.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/rng.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::planner {
namespace {

std::vector<ChainUnit> drawn_chain(std::uint64_t seed, std::size_t units) {
  const CounterRng random(seed, stream_of("test/chain"));
  std::uint64_t drawn = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(drawn++, bound); };
  std::vector<ChainUnit> chain(units);
  for (ChainUnit& unit : chain) {
    unit.forward_s = static_cast<double>(1 + below(9));
    unit.output_bytes = 1 + below(4);
    unit.gradient_bytes = below(2) == 0 ? unit.output_bytes : below(3);
    unit.parts_bytes = below(12);
    unit.forward_bytes = unit.output_bytes + unit.parts_bytes + below(3);
    unit.backward_bytes = unit.gradient_bytes + below(5);
  }
  return chain;
}

// What memory holds between two operations. Unit indices count from 0, outputs are inputs of the
// next unit.
struct Held {
  std::array<std::int8_t, 11> left{};  // by unit: 1 its input stays, 2 its parts too
  std::int8_t input_of = 0;            // the unit whose input the last pass made
  std::int8_t backward = 0;            // the unit whose backward pass is next
  auto operator<=>(const Held&) const = default;

  // An input that stays anyway, or that no later pass reads, need not be told apart.
  void forget_input() {
    const bool useless = input_of > backward || left[static_cast<std::size_t>(input_of)] >= 1;
    if (useless) input_of = 0;
  }
};

struct HashOfHeld {
  std::size_t operator()(const Held& held) const {
    std::size_t hash = 0;
    for (const std::int8_t left : held.left) hash = hash * 3 + static_cast<std::size_t>(left);
    return (hash * 12 + static_cast<std::size_t>(held.input_of)) * 12 +
           static_cast<std::size_t>(held.backward + 1);
  }
};

// Dijkstra's algorithm over all states: any unit whose input is there may run and leave nothing,
// its input, or its parts as well, as long as memory suffices. It knows nothing of intervals.
double exhaustive_s(const std::vector<ChainUnit>& chain, std::uint64_t memory) {
  const auto count = static_cast<std::int8_t>(chain.size());
  const auto of = [&](std::int8_t unit) -> const ChainUnit& {
    return chain[static_cast<std::size_t>(unit)];
  };
  const auto input_bytes = [&](std::int8_t unit) {
    return unit == 0 ? 0 : of(static_cast<std::int8_t>(unit - 1)).output_bytes;
  };
  const auto kept_bytes = [&](const Held& held) {
    std::uint64_t bytes = 0;
    for (std::int8_t unit = 0; unit < count; ++unit) {
      const auto left = held.left[static_cast<std::size_t>(unit)];
      if (left >= 1) bytes += input_bytes(unit);
      if (left == 2) bytes += of(unit).parts_bytes;
    }
    return bytes;
  };
  std::unordered_map<Held, double, HashOfHeld> seconds;
  using Open = std::pair<double, Held>;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  Held start;
  start.left[0] = 1;
  start.backward = static_cast<std::int8_t>(count - 1);
  open.push({0, start});
  seconds[start] = 0;
  while (!open.empty()) {
    const auto [now_s, held] = open.top();
    open.pop();
    if (now_s > seconds.at(held)) continue;
    if (held.backward < 0) return now_s;
    const auto reach = [&](Held next, double next_s) {
      next.forget_input();
      const auto [found, fresh] = seconds.try_emplace(next, next_s);
      if (!fresh && found->second <= next_s) return;
      found->second = next_s;
      open.push({next_s, next});
    };
    const std::uint64_t kept = kept_bytes(held);
    const auto back = static_cast<std::size_t>(held.backward);
    if (held.left[back] == 2 && kept + of(held.backward).backward_bytes <= memory) {
      Held next = held;
      next.left[back] = 0;
      next.input_of = 0;
      --next.backward;
      reach(next, now_s);
    }
    for (std::int8_t unit = 0; unit <= held.backward; ++unit) {
      const auto at = static_cast<std::size_t>(unit);
      const bool stays = held.left[at] >= 1;
      if ((!stays && held.input_of != unit) || held.left[at] == 2) continue;
      const std::uint64_t needed = kept + (stays ? 0 : input_bytes(unit)) + of(unit).forward_bytes +
                                   of(held.backward).gradient_bytes;
      if (needed > memory) continue;
      for (const std::int8_t left : {0, 1, 2}) {
        // The pass in front of backward is for nothing but its parts.
        if (left < held.left[at] || (unit == held.backward && left < 2)) continue;
        Held next = held;
        next.left[at] = left;
        next.input_of = static_cast<std::int8_t>(unit + 1);
        // A unit's parts stay with its output.
        if (left == 2 && unit < held.backward) {
          next.left[at + 1] = std::max<std::int8_t>(next.left[at + 1], 1);
        }
        reach(next, now_s + of(unit).forward_s);
      }
    }
  }
  return std::numeric_limits<double>::infinity();
}

double seconds_of(const std::vector<ChainUnit>& chain, const std::vector<ChainRuns>& runs) {
  double seconds = 0;
  for (std::size_t unit = 0; unit < chain.size(); ++unit) {
    seconds += (1 + runs[unit].parts_run) * chain[unit].forward_s;
  }
  return seconds;
}

std::uint64_t peak_of_all_kept(const std::vector<ChainUnit>& chain) {
  return chain_peak_bytes(chain, std::vector<ChainRuns>(chain.size()));
}

TEST(ChainRecompute, EqualsExhaustiveSearchOverPersistentSchedules) {
  int repeated = 0;
  int nested = 0;
  for (std::uint64_t seed = 0; seed < testing::sweep(1000); ++seed) {
    SCOPED_TRACE(seed);
    const std::size_t units = 1 + seed % 10;
    const std::vector<ChainUnit> chain = drawn_chain(seed, units);
    const std::uint64_t all = peak_of_all_kept(chain);
    const std::uint64_t memory = all * (8 + seed / 10 % 12) / 20;
    const auto runs = least_recomputation(chain, memory, std::max<std::uint64_t>(memory, 1));
    const double least_s = exhaustive_s(chain, memory);
    ASSERT_EQ(runs.has_value(), least_s < std::numeric_limits<double>::infinity());
    if (!runs) continue;
    ASSERT_EQ(seconds_of(chain, *runs), least_s);
    ASSERT_LE(chain_peak_bytes(chain, *runs), memory);
    int most = 0;
    for (const ChainRuns& unit : *runs) most = std::max(most, unit.parts_run);
    repeated += most > 0 ? 1 : 0;
    nested += most > 1 ? 1 : 0;
  }
  if (testing::kSanitized) return;
  // Few cases are trivial.
  EXPECT_GT(repeated, 700);
  EXPECT_GT(nested, 60);
}

// Equal units need no table of their own for each place in the chain.
TEST(ChainRecompute, LongChainsOfEqualUnitsTakeTheLogarithmOfTheirMemory) {
  ChainUnit unit{1, 1, 1, 8, 10, 4};
  std::vector<ChainUnit> chain(100, unit);
  chain.back().gradient_bytes = 0;
  const auto runs_in = [&](std::uint64_t memory) {
    const auto runs = least_recomputation(chain, memory, memory);
    EXPECT_TRUE(runs.has_value()) << memory;
    EXPECT_LE(chain_peak_bytes(chain, *runs), memory);
    int most = 0;
    for (const ChainRuns& of : *runs) most = std::max(most, of.parts_run);
    return most;
  };
  // All parts and outputs; the square root of the inputs; a few.
  EXPECT_EQ(runs_in(peak_of_all_kept(chain)), 0);
  EXPECT_EQ(runs_in(120), 1);
  EXPECT_GT(runs_in(20), 2);
  EXPECT_FALSE(least_recomputation(chain, 11, 11).has_value());
}

// Sizes are rounded up, so a coarse count never takes more than the memory.
TEST(ChainRecompute, FewSlotsStayWithinTheMemory) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<ChainUnit> chain = drawn_chain(seed, 9);
    for (ChainUnit& unit : chain) {
      for (std::uint64_t* bytes : {&unit.output_bytes, &unit.gradient_bytes, &unit.parts_bytes,
                                   &unit.forward_bytes, &unit.backward_bytes}) {
        *bytes = *bytes * 1000 + seed;
      }
    }
    const std::uint64_t memory = peak_of_all_kept(chain) * 3 / 4;
    const auto coarse = least_recomputation(chain, memory, 60);
    const auto exact = least_recomputation(chain, memory, memory / 100);
    if (!coarse) continue;
    EXPECT_LE(chain_peak_bytes(chain, *coarse), memory);
    ASSERT_TRUE(exact.has_value());
    EXPECT_GE(seconds_of(chain, *coarse), seconds_of(chain, *exact));
  }
}

}  // namespace
}  // namespace sluice::planner
