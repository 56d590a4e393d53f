// An all-reduce in two levels: within each node, then across the nodes, then within each node
// again. Each rank sends only 1 / (ranks of a node) of the sums to other nodes.
//
// It gives the bits of all_reduce() over all ranks. A node's ranks are an aligned block of 2^k
// ranks, so their sum is a subtree of law 2's tree (fold.hpp). 16-bit floats travel between nodes
// as fp32 sums, so each value is rounded once.
#pragma once

#include <cstdint>

#include "collectives/communicator.hpp"

namespace sluice::collectives {

// The two groups of a rank: the ranks of its node, and the ranks with its place in the other nodes.
// Rank r of all ranks is rank r % node.size() of its node, and r / node.size() across.
struct NodeGroups {
  Communicator& node;
  Communicator& across;
};

std::uint64_t hierarchical_all_reduce_workspace_bytes(const NodeGroups& groups, std::uint64_t count,
                                                      DType dtype);
// Sums data [count] over all ranks, in place. Throws InputError unless the ranks of a node are a
// power of two or there is one node: the bits would depend on the nodes.
void hierarchical_all_reduce(const NodeGroups& groups, void* data, std::uint64_t count, DType dtype,
                             void* workspace);

}  // namespace sluice::collectives
