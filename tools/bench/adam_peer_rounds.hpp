// The rounds of a benchmark in which others' AdamW took part.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/bench/adam_peers.hpp"

namespace sluice::bench {

class AdamPeerRounds {
 public:
  AdamPeerRounds(AdamPeers peers, std::int64_t elems);

  // One step of every peer. The rounds that are not counted warm them up and are dropped.
  void run_round(bool counted);

  // `ours`: parameters a second of each of our variants, round by round, as many as were counted.
  // {"versions", "huge_page_bytes", "missing" where some are, "variants": {PEER: {"job",
  //   "bytes_per_param", "params_per_s", "ratio": {OURS: ours by the peer, ...}}}}
  // Medians over the rounds; a ratio is the median of the rounds' ratios.
  nlohmann::json figures(const std::map<std::string, std::vector<double>>& ours) const;

 private:
  AdamPeers peers_;
  double elems_ = 0;
  std::map<std::string, std::vector<double>> params_per_s_;
};

}  // namespace sluice::bench
