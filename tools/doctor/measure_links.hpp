// The links between ranks of this machine, as they share it when all ranks of a node train.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/units.hpp"
#include "collectives/communicator.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "tools/doctor/samples.hpp"

namespace sluice::doctor {

using RankGroup = std::vector<std::unique_ptr<collectives::Communicator>>;

struct LinkOptions {
  // Makes the communicators of a group, in rank order. Each is used by a thread of its own. Empty:
  // links are not measured.
  std::function<RankGroup(int ranks)> make_group = {};
  std::uint64_t rank_bytes = 8 * kMiB;  // sent by a rank in an exchange
};

// A pair of ranks, and a group of kNodeRanks. Their figures are those of the plan's formula
// (engine/planner/price/rank_links.hpp): the pair has the latency and the rate of one link, the
// group the rate that its ranks reach together.
class LinkTrial {
 public:
  static constexpr int kNodeRanks = 4;

  // Measures nothing without options.make_group. Throws as that function does.
  explicit LinkTrial(const LinkOptions& options);

  bool measures() const { return !pair_.empty(); }
  // Throws CommunicationError, TimeoutError.
  void measure_round();
  // Sets the figures within a node; `profile` keeps those between nodes.
  void save(planner::HardwareProfile& profile) const;

 private:
  const std::uint64_t rank_bytes_;
  const RankGroup pair_, node_;
  Samples latency_s_, pair_s_, node_s_;
};

}  // namespace sluice::doctor
