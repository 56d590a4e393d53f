// Pairwise exchange (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005, section 4): p - 1 messages of equal size, (p - 1) * latency + bytes /
// bandwidth. Links inside a node and between nodes work at the same time; the slower of them counts.
#include "engine/planner/price/rank_links.hpp"

#include <algorithm>

namespace sluice::planner {
namespace {

// Seconds of one byte for each kind of link, if all ranks send at once.
double node_byte_s(const RankLinks& links, std::int32_t local) {
  const double shared = links.node_bytes_per_s > 0 ? local / links.node_bytes_per_s : 0;
  return std::max(1 / links.bytes_per_s, shared);
}
double network_byte_s(const RankLinks& links, std::int32_t local) {
  return local / links.network_bytes_per_s;
}

}  // namespace

std::int32_t RankLinks::ranks_of_node(std::int32_t ranks) const {
  return node_ranks > 0 ? std::min(node_ranks, ranks) : ranks;
}

double RankLinks::messages_s(std::int32_t ranks, const Messages& messages) const {
  if (ranks < 2) return 0;
  const std::int32_t local = ranks_of_node(ranks);
  return std::max(messages.node_peers * latency_s + messages.node_bytes * node_byte_s(*this, local),
                  messages.network_peers * network_latency_s +
                      messages.network_bytes * network_byte_s(*this, local));
}

double RankLinks::collective_s(std::int32_t ranks, double bytes) const {
  if (ranks < 2) return 0;
  const std::int32_t near = ranks_of_node(ranks) - 1;
  const std::int32_t far = ranks - 1 - near;
  const double each = bytes / (ranks - 1);
  return messages_s(ranks, {near, far, near * each, far * each});
}

double RankLinks::message_s(std::int32_t ranks, std::int32_t stage_ranks, double bytes) const {
  const std::int32_t local = ranks_of_node(ranks);
  const double near = latency_s + bytes / bytes_per_s;
  if (local == ranks) return near;
  const double far =
      network_latency_s + bytes * network_byte_s(*this, std::min(local, stage_ranks));
  return std::max(near, far);
}

double RankLinks::byte_s(std::int32_t ranks) const {
  if (ranks < 2) return 0;
  RankLinks fast = *this;
  fast.latency_s = fast.network_latency_s = 0;
  return fast.collective_s(ranks, 1);
}

}  // namespace sluice::planner
