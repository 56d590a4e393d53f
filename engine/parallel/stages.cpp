// Dynamic programming from the end: least[s][u] is the least cost of the most expensive of s runs
// that the units from u on are cut into.
#include "engine/parallel/stages.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace sluice::parallel {

std::vector<schedule::UnitRange> cut_stages(const std::vector<std::uint64_t>& unit_costs,
                                            std::int32_t stages) {
  const std::size_t units = unit_costs.size();
  const auto runs = static_cast<std::size_t>(stages);
  SLUICE_CHECK(stages > 0 && units >= runs);
  constexpr std::uint64_t kImpossible = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::vector<std::uint64_t>> least(runs + 1,
                                                std::vector<std::uint64_t>(units + 1, kImpossible));
  std::vector<std::vector<std::size_t>> first_end(runs + 1, std::vector<std::size_t>(units + 1));
  least[0][units] = 0;
  for (std::size_t run = 1; run <= runs; ++run) {
    for (std::size_t begin = units; begin-- > 0;) {
      std::uint64_t cost = 0;
      for (std::size_t end = begin + 1; end <= units; ++end) {
        cost += unit_costs[end - 1];
        const std::uint64_t most = std::max(cost, least[run - 1][end]);
        if (most >= least[run][begin]) continue;
        least[run][begin] = most;
        first_end[run][begin] = end;
      }
    }
  }
  std::vector<schedule::UnitRange> ranges;
  std::size_t begin = 0;
  for (std::size_t run = runs; run > 0; --run) {
    const std::size_t end = first_end[run][begin];
    ranges.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
    begin = end;
  }
  return ranges;
}

schedule::StageView make_stage_view(const schedule::PipelineOrder& order,
                                    std::vector<schedule::UnitRange> units, std::int32_t rank) {
  SLUICE_CHECK(rank >= 0 && rank < order.ranks() && units.size() == order.rank_of_stage.size());
  schedule::StageView view;
  view.rank = rank;
  view.order = order;
  view.units = std::move(units);
  return view;
}

}  // namespace sluice::parallel
