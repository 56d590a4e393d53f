// Dynamic programming from the end, twice. least[s][u] is the least cost of the most expensive of s
// runs that the units from u on are cut into, where no run takes more bytes than it may. Among the
// cuts that reach the least cost of all, the second program takes the least sum of squares, so that
// the runs below the most expensive one are even: with a fixed sum the squares measure the spread.
#include "engine/parallel/stages.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::parallel {
namespace {

constexpr std::uint64_t kImpossible = std::numeric_limits<std::uint64_t>::max();

struct Cut {
  std::uint64_t value = kImpossible;
  std::vector<schedule::UnitRange> ranges;  // empty: no cut is possible
};

// The cut of the least value; among equal ones the later runs begin as early as possible. costs
// and bytes: by stage and unit. combine(cost, rest): the value of a cut, from the cost of its first
// run and the value of the others; kImpossible if the run may not be so expensive. It never falls
// as `rest` grows.
template <typename Combine>
Cut least_cut(const StageBytes& costs, const StageBytes& bytes, std::uint64_t most_bytes,
              const Combine& combine) {
  const std::size_t runs = costs.size();
  SLUICE_CHECK(runs > 0 && bytes.size() == runs && costs.front().size() >= runs);
  const std::size_t units = costs.front().size();
  std::vector<std::vector<std::uint64_t>> least(runs + 1,
                                                std::vector<std::uint64_t>(units + 1, kImpossible));
  std::vector<std::vector<std::size_t>> first_end(runs + 1, std::vector<std::size_t>(units + 1));
  least[0][units] = 0;
  for (std::size_t run = 1; run <= runs; ++run) {
    const std::size_t stage = runs - run;
    for (std::size_t begin = units; begin-- > 0;) {
      std::uint64_t cost = 0, taken = 0;
      for (std::size_t end = begin + 1; end <= units; ++end) {
        cost += costs[stage][end - 1];
        taken += bytes[stage][end - 1];
        if (taken > most_bytes) break;
        const std::uint64_t rest = least[run - 1][end];
        const std::uint64_t value = rest == kImpossible ? kImpossible : combine(cost, rest);
        if (value >= least[run][begin]) continue;
        least[run][begin] = value;
        first_end[run][begin] = end;
      }
    }
  }
  Cut cut{least[runs][0], {}};
  if (cut.value == kImpossible) return cut;
  std::size_t begin = 0;
  for (std::size_t run = runs; run > 0; --run) {
    const std::size_t end = first_end[run][begin];
    cut.ranges.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
    begin = end;
  }
  return cut;
}

// The least cost of the most expensive run.
Cut least_most(const StageBytes& costs, const StageBytes& bytes, std::uint64_t most_bytes) {
  return least_cut(costs, bytes, most_bytes,
                   [](std::uint64_t cost, std::uint64_t rest) { return std::max(cost, rest); });
}

// A cut of least_most() with the other runs as even as possible. Costs are squared in steps of
// 2^-26 of their sum, so that the squares add up exactly.
Cut balanced_cut(const StageBytes& costs, const StageBytes& bytes, std::uint64_t most_bytes) {
  const Cut first = least_most(costs, bytes, most_bytes);
  if (first.ranges.empty()) return first;
  const std::uint64_t sum =
      std::accumulate(costs.front().begin(), costs.front().end(), std::uint64_t{0});
  const std::uint64_t step = ceil_div(std::max<std::uint64_t>(sum, 1), std::uint64_t{1} << 26);
  return least_cut(costs, bytes, most_bytes, [&](std::uint64_t cost, std::uint64_t rest) {
    const std::uint64_t steps = cost / step;
    return cost > first.value ? kImpossible : steps * steps + rest;
  });
}

StageBytes none_of(const StageBytes& like) {
  return StageBytes(like.size(), std::vector<std::uint64_t>(like.front().size()));
}

}  // namespace

std::vector<schedule::UnitRange> cut_stages(const std::vector<std::uint64_t>& unit_costs,
                                            std::int32_t stages) {
  const StageBytes costs(static_cast<std::size_t>(stages), unit_costs);
  return balanced_cut(costs, none_of(costs), 0).ranges;
}

std::optional<std::vector<schedule::UnitRange>> cut_stages_within(
    const std::vector<std::uint64_t>& unit_costs, const StageBytes& bytes,
    std::uint64_t most_bytes) {
  const Cut cut = balanced_cut(StageBytes(bytes.size(), unit_costs), bytes, most_bytes);
  if (cut.ranges.empty()) return std::nullopt;
  return cut.ranges;
}

std::uint64_t least_stage_bytes(const StageBytes& bytes) {
  return least_most(bytes, none_of(bytes), 0).value;
}

schedule::StageView make_stage_view(const schedule::PipelineOrder& order,
                                    std::vector<schedule::UnitRange> units, std::int32_t rank) {
  SLUICE_CHECK(rank >= 0 && rank < order.ranks() && units.size() == order.rank_of_stage.size());
  schedule::StageView view;
  view.rank = rank;
  view.order = order;
  if (order.ranks() > 1) {
    view.messages = std::make_shared<const std::vector<std::vector<schedule::PlacedMessage>>>(
        schedule::place_messages(order));
  }
  view.units = std::move(units);
  return view;
}

}  // namespace sluice::parallel
