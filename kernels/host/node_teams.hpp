// How the threads of a team are shared among the NUMA nodes of a machine, and pieces of work among
// those: pure functions of the machine and of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/numa.hpp"

namespace sluice::kernels::host {

// Some of the threads, on nodes[node].
struct NodeTeam {
  std::size_t node = 0;
  int threads = 1;
};

// In the order of nodes, those of which this process may use processing units: in proportion to
// them, each thread in turn to the node that has the fewest for its units (of equals, the first).
// Nodes that get none are left out. Where no node has a unit: one team, of node 0.
std::vector<NodeTeam> share_threads(std::span<const NumaNode> nodes, int threads);

// Seats of each team when only `workers` of the threads are needed, shared out in the same way;
// workers: at most all threads.
std::vector<int> share_workers(std::span<const NodeTeam> teams, int workers);

// The team that a piece of `count` belongs to where nobody knows its node: teams take consecutive
// pieces, as many as they have threads for.
std::size_t team_of_piece(std::span<const NodeTeam> teams, std::int64_t piece, std::int64_t count);

}  // namespace sluice::kernels::host
