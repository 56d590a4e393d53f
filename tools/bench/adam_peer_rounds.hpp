// Collects the timings of the peers' AdamW steps over the rounds of `sluice bench adam`.
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

  // Runs one step of every peer. Rounds that are not counted only warm the peers up.
  void run_round(bool counted);

  // `ours`: parameters per second of each of our variants, one value per counted round.
  // Returns {"versions", "huge_page_bytes", "missing" if some peers are, "variants": {PEER: {"job",
  //   "bytes_per_param", "params_per_s", "ratio": {OURS: ours / the peer's, ...}}}}.
  // Figures are medians over the rounds; a ratio is the median of the rounds' ratios.
  nlohmann::json figures(const std::map<std::string, std::vector<double>>& ours) const;

 private:
  AdamPeers peers_;
  double elems_ = 0;
  std::map<std::string, std::vector<double>> params_per_s_;
};

}  // namespace sluice::bench
