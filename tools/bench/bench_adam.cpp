#include "tools/bench/bench_adam.hpp"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "tools/bench/adam_peer_rounds.hpp"
#include "tools/bench/adam_traffic.hpp"
#include "tools/bench/adam_variants.hpp"
#include "tools/bench/median.hpp"

namespace sluice::bench {
namespace {

struct Rounds {
  std::vector<double> update, traffic, ratio;  // update and traffic in parameters per second
};

// The variants with these names, in the order of adam_variants().
std::vector<AdamVariant> chosen(const std::vector<std::string>& names) {
  const std::span<const AdamVariant> all = adam_variants();
  std::string known;
  for (const AdamVariant& variant : all) {
    known += (known.empty() ? "" : ", ") + std::string(variant.name);
  }
  for (const std::string& name : names) {
    const bool exists = std::any_of(
        all.begin(), all.end(), [&](const AdamVariant& variant) { return variant.name == name; });
    if (!exists) {
      throw InputError("bench adam: there is no variant '" + name + "'; the variants are " + known);
    }
  }
  std::vector<AdamVariant> variants;
  for (const AdamVariant& variant : all) {
    if (names.empty() || std::find(names.begin(), names.end(), variant.name) != names.end()) {
      variants.push_back(variant);
    }
  }
  return variants;
}

void check(const AdamBenchOptions& options) {
  if (options.elems < kernels::host::kUpdatePieceElems ||
      options.elems % kernels::host::kUpdatePieceElems != 0) {
    throw InputError("bench adam: elems must be a positive multiple of " +
                     std::to_string(kernels::host::kUpdatePieceElems));
  }
  if (options.rounds < 7) throw InputError("bench adam: rounds must be at least 7");
  if (options.threads < 0) throw InputError("bench adam: threads must not be negative");
}

constexpr std::chrono::milliseconds kUntilThreadsSleep{100};

nlohmann::json figures_of(const AdamVariant& variant, const Rounds& rounds, double bytes) {
  const double params_per_s = median(rounds.update);
  return {{"what", variant.what},
          {"params_per_s", params_per_s},
          {"traffic_params_per_s", median(rounds.traffic)},
          {"ratio", median(rounds.ratio)},
          {"bytes_per_param", bytes},
          {"gib_per_s", params_per_s * bytes / 0x1p30}};
}

std::optional<AdamPeerRounds> open_peers(const AdamBenchOptions& options, int threads) {
  if (options.peers_python.empty()) return std::nullopt;
  std::optional<AdamPeers> peers = AdamPeers::open(options.peers_python, threads, options.elems);
  if (!peers) throw InputError("bench adam: there is no program " + options.peers_python);
  return AdamPeerRounds(std::move(*peers), options.elems);
}

}  // namespace

nlohmann::json run_adam_bench(const AdamBenchOptions& options) {
  check(options);
  const std::vector<AdamVariant> variants = chosen(options.variants);
  const kernels::host::Parallel parallel(options.threads);
  std::vector<AdamVariantStep> steps;
  steps.reserve(variants.size());
  for (const AdamVariant& variant : variants) steps.emplace_back(parallel, variant, options.elems);
  std::optional<AdamPeerRounds> peers = open_peers(options, parallel.threads());
  std::vector<Rounds> rounds(variants.size());
  const auto elems = static_cast<double>(options.elems);
  // The first round warms the clock and the threads; its figures are dropped.
  for (int round = -1; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const double update = elems / steps[i].update_seconds();
      const double traffic = elems / steps[i].traffic_seconds();
      if (round < 0) continue;
      rounds[i].update.push_back(update);
      rounds[i].traffic.push_back(traffic);
      rounds[i].ratio.push_back(update / traffic);
    }
    if (!peers) continue;
    // The threads of OpenMP and oneTBB spin for a while before they sleep, on cores that the next
    // measurement needs. The first call after a pause wakes cores and threads; it is not counted.
    std::this_thread::sleep_for(kUntilThreadsSleep);
    peers->run_round(round >= 0);
    std::this_thread::sleep_for(kUntilThreadsSleep);
    steps.front().traffic_seconds();
  }
  nlohmann::json of_variants = nlohmann::json::object();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    of_variants[std::string(variants[i].name)] =
        figures_of(variants[i], rounds[i], steps[i].bytes_per_param());
  }
  nlohmann::json figures = {{"threads", parallel.threads()},
                            {"elems", options.elems},
                            {"rounds", options.rounds},
                            {"instruction_set", vector_instruction_set()},
                            {"variants", of_variants}};
  if (peers) {
    std::map<std::string, std::vector<double>> ours;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      ours[std::string(variants[i].name)] = rounds[i].update;
    }
    figures["peers"] = peers->figures(ours);
  }
  return {{"event", "bench"}, {"name", "adam"}, {"figures", figures}};
}

}  // namespace sluice::bench
