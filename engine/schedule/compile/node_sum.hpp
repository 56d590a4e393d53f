// A sum over ranks that adds within each node first, with the bits of the tree over all ranks.
//
// A node is 2^k consecutive ranks, so the groups of its ranks are a whole subtree (law 2). Within a
// node rank j gathers the parts of all shards whose owners have the place j in their nodes, and
// adds those of its node. Then the ranks of one place exchange these sums, each for its own shard.
// So of a shard only one part for each node crosses the network.
//
// A rank sends the parts of other places within its node, then 4 bytes for each element of its own
// place in other nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/rank_exchange.hpp"
#include "engine/schedule/compile/step_builder.hpp"

namespace sluice::schedule {

class NodeSum {
 public:
  // partial: this rank's sum, of the whole unit, on the device; of one micro-batch the gradient as
  // computed.
  NodeSum(StepBuilder& builder, std::int32_t unit, BufferId partial);
  // In this order. The additions follow the exchanges before them.
  void emit_within_node();
  void emit_node_additions();
  void emit_across_nodes();
  // Returns the sum over all ranks of this rank's shard; kNoId: the shard is empty.
  BufferId emit_additions();

 private:
  std::int32_t nodes() const { return builder_->view().ranks / node_ranks_; }
  std::int32_t rank_of(std::int32_t node, std::int32_t place) const {
    return node * node_ranks_ + place;
  }
  Instruction& emit_exchange_of_parts() const;
  Use with_peer(Use use, std::int32_t rank) const;

  StepBuilder* builder_;
  std::int32_t unit_;
  BufferId partial_;
  std::int32_t node_ranks_;
  std::int32_t node_;   // this rank's
  std::int32_t place_;  // in it
  // By node: the parts of the shard there that has this place, in the order of the node's ranks.
  std::vector<std::vector<GradientPart>> parts_;
  std::vector<BufferId> sums_;            // by node: of these parts; kNoId: the shard is empty
  std::vector<GradientPart> node_parts_;  // of this rank's shard, by node
};

}  // namespace sluice::schedule
