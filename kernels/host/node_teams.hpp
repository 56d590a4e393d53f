// The distribution of a team's threads over the NUMA nodes of a machine, and of pieces of work over
// those: pure functions of the machine and of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/numa.hpp"

namespace sluice::kernels::host {

// The threads of a team that run on nodes[node].
struct NodeTeam {
  std::size_t node = 0;
  int threads = 1;
};

// Distributes threads over the nodes with processing units that this process may use, in proportion
// to those units: each thread goes to the node with the fewest threads per unit (the first of
// equals). The result is in the order of nodes, without nodes that get no thread. If no node has a
// unit, it is one team on node 0.
std::vector<NodeTeam> share_threads(std::span<const NumaNode> nodes, int threads);

// Distributes `workers` of the threads over the teams in the same way. workers: at most all
// threads.
std::vector<int> share_workers(std::span<const NodeTeam> teams, int workers);

// The team of a piece out of `count` on an unknown node. Teams take consecutive pieces in
// proportion to their threads.
std::size_t team_of_piece(std::span<const NodeTeam> teams, std::int64_t piece, std::int64_t count);

}  // namespace sluice::kernels::host
