// The links between ranks, as a plan prices their collectives and messages.
#pragma once

#include <cstdint>

namespace sluice::planner {

// Each rank talks to each other rank directly. The default is the loopback of a small virtual
// machine with all ranks on it: Gloo moved 0.45 GB/s between two processes on two cores
// (docs/design/ranks.md).
struct RankLinks {
  // Between two ranks of one node: from the start of a message to its first byte, and the bytes
  // that a rank sends a second while it receives as many.
  double latency_s = 1e-4;
  double bytes_per_s = 4e8;
  // All ranks of a node together, among themselves; 0: as many times bytes_per_s as there are.
  double node_bytes_per_s = 8e8;
  // Between nodes: the same of a whole node, whose ranks share it.
  double network_latency_s = 1e-4;
  double network_bytes_per_s = 1e8;
  std::int32_t node_ranks = 0;  // of one node; 0: all

  bool operator==(const RankLinks&) const = default;

  // Ranks of `ranks` that share a node.
  std::int32_t ranks_of_node(std::int32_t ranks) const;
  bool share_node(std::int32_t rank, std::int32_t other) const {
    return node_ranks == 0 || rank / node_ranks == other / node_ranks;
  }
  // The bytes that a rank moves in one collective, in the busier direction of each kind of link, and
  // the ranks at the other end. One message for each of them goes out after the other.
  struct Messages {
    std::int32_t node_peers = 0, network_peers = 0;
    double node_bytes = 0, network_bytes = 0;
  };
  double messages_s(std::int32_t ranks, const Messages& messages) const;
  // The duration of a collective in which a rank moves so many bytes in the busier direction, evenly
  // from or to all others. One message for each of them goes out after the other.
  double collective_s(std::int32_t ranks, double bytes) const;
  // The duration of one message between neighbours in a pipeline, on the slowest link that any two
  // neighbours have. The ranks of a stage send at once, so as many of them as a node has share
  // its network.
  double message_s(std::int32_t ranks, std::int32_t stage_ranks, double bytes) const;
  // The same for one byte of a very large collective.
  double byte_s(std::int32_t ranks) const;
};

}  // namespace sluice::planner
