// Proportional distribution by a greedy rule, so that the result is deterministic: each seat goes
// to the node with the lowest load after it. Products replace divisions, so nothing is rounded.
#include "kernels/host/node_teams.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::kernels::host {
namespace {

// Assigns `seats` one by one to the member with the fewest seats for its weight (the first of
// equals). If `most` is not empty, member i gets at most most[i].
std::vector<int> share(std::span<const std::int64_t> weights, int seats,
                       std::span<const int> most = {}) {
  std::vector<int> shares(weights.size(), 0);
  for (int seat = 0; seat < seats; ++seat) {
    std::size_t best = weights.size();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0 || (!most.empty() && shares[i] == most[i])) continue;
      // (shares + 1) / weight, compared without division
      if (best == weights.size() ||
          (shares[i] + 1) * weights[best] < (shares[best] + 1) * weights[i]) {
        best = i;
      }
    }
    SLUICE_CHECK(best < weights.size());
    ++shares[best];
  }
  return shares;
}

}  // namespace

std::vector<NodeTeam> share_threads(std::span<const NumaNode> nodes, int threads) {
  std::vector<std::int64_t> units;
  for (const NumaNode& node : nodes) units.push_back(static_cast<std::int64_t>(node.cpus.size()));
  if (std::all_of(units.begin(), units.end(), [](std::int64_t n) { return n == 0; })) {
    return {{0, threads}};
  }
  const std::vector<int> shares = share(units, threads);
  std::vector<NodeTeam> teams;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] > 0) teams.push_back({i, shares[i]});
  }
  return teams;
}

std::vector<int> share_workers(std::span<const NodeTeam> teams, int workers) {
  std::vector<std::int64_t> weights;
  std::vector<int> most;
  for (const NodeTeam& team : teams) {
    weights.push_back(team.threads);
    most.push_back(team.threads);
  }
  return share(weights, workers, most);
}

std::size_t team_of_piece(std::span<const NodeTeam> teams, std::int64_t piece, std::int64_t count) {
  std::int64_t threads = 0;
  for (const NodeTeam& team : teams) threads += team.threads;
  std::int64_t before = 0;
  for (std::size_t i = 0; i + 1 < teams.size(); ++i) {
    before += teams[i].threads;
    if (piece * threads < before * count) return i;
  }
  return teams.size() - 1;
}

}  // namespace sluice::kernels::host
