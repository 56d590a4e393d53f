#include "tools/bench/adam_peer_rounds.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "tools/bench/median.hpp"

namespace sluice::bench {

AdamPeerRounds::AdamPeerRounds(AdamPeers peers, std::int64_t elems)
    : peers_(std::move(peers)), elems_(static_cast<double>(elems)) {}

void AdamPeerRounds::run_round(bool counted) {
  if (!peers_.variants().empty()) peers_.seconds(peers_.variants().front().name);
  for (const AdamPeer& peer : peers_.variants()) {
    const double seconds = peers_.seconds(peer.name);
    if (counted) params_per_s_[peer.name].push_back(elems_ / seconds);
  }
}

nlohmann::json AdamPeerRounds::figures(
    const std::map<std::string, std::vector<double>>& ours) const {
  nlohmann::json variants = nlohmann::json::object();
  for (const AdamPeer& peer : peers_.variants()) {
    const std::vector<double>& theirs = params_per_s_.at(peer.name);
    nlohmann::json ratios = nlohmann::json::object();
    for (const auto& [name, rates] : ours) {
      SLUICE_CHECK(rates.size() == theirs.size());
      std::vector<double> of_rounds;
      for (std::size_t i = 0; i < rates.size(); ++i) of_rounds.push_back(rates[i] / theirs[i]);
      ratios[name] = median(of_rounds);
    }
    variants[peer.name] = {{"job", peer.job},
                           {"bytes_per_param", peer.bytes_per_param},
                           {"params_per_s", median(theirs)},
                           {"ratio", ratios}};
  }
  nlohmann::json figures = {{"versions", peers_.versions()},
                            {"huge_page_bytes", peers_.huge_page_bytes()},
                            {"variants", variants}};
  if (!peers_.missing().empty()) figures["missing"] = peers_.missing();
  return figures;
}

}  // namespace sluice::bench
