#include "tools/replay/replay_packing.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <vector>

#include "allocator/packing/placed_boxes.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::replay {
namespace {

// Places buffers in the order of time, each in the smallest free gap that is large enough.
std::uint64_t online_capacity_bytes(std::span<const packing::Lifetime> lifetimes) {
  std::vector<std::uint64_t> starts;
  for (const packing::Lifetime& one : lifetimes) starts.push_back(one.lower);
  std::sort(starts.begin(), starts.end());
  const auto rank_of = [&](std::uint64_t position) {
    return static_cast<std::int32_t>(std::lower_bound(starts.begin(), starts.end(), position) -
                                     starts.begin());
  };
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].lower < lifetimes[b].lower;
  });
  packing::PlacedBoxes placed;
  std::uint64_t capacity_bytes = 0;
  for (const std::size_t i : order) {
    const packing::Box box{rank_of(lifetimes[i].lower), rank_of(lifetimes[i].upper),
                           lifetimes[i].bytes};
    const std::uint64_t offset = placed.find_offset(box, packing::Fit::kBest);
    placed.insert(box, offset);
    capacity_bytes = std::max(capacity_bytes, offset + box.bytes);
  }
  return capacity_bytes;
}

std::uint64_t planned_capacity_bytes(std::span<const packing::Lifetime> lifetimes,
                                     packing::PackingEffort effort, std::uint64_t enough_bytes) {
  const packing::Packing packing = packing::pack_lifetimes(lifetimes, 1, effort, enough_bytes);
  packing::check_packing(lifetimes, packing, 1);
  return packing.capacity_bytes;
}

}  // namespace

nlohmann::json replay_packing(std::span<const packing::Lifetime> lifetimes,
                              const std::string& source,
                              std::optional<std::uint64_t> capacity_bytes) {
  SLUICE_CHECK(lifetimes.size() < std::numeric_limits<std::int32_t>::max());
  const std::uint64_t peak_live_bytes = packing::peak_live(lifetimes);
  nlohmann::json policies = nlohmann::json::array();
  const auto run = [&](const char* policy, const std::function<std::uint64_t()>& capacity) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t bytes = capacity();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    nlohmann::json result{{"policy", policy},
                          {"capacity_bytes", bytes},
                          {"above_peak_live",
                           static_cast<double>(bytes) / static_cast<double>(peak_live_bytes) - 1.0},
                          {"seconds", taken.count()}};
    if (capacity_bytes) result["fits"] = bytes <= *capacity_bytes;
    policies.push_back(std::move(result));
  };
  run("online", [&] { return online_capacity_bytes(lifetimes); });
  run("quick",
      [&] { return planned_capacity_bytes(lifetimes, packing::PackingEffort::kQuick, 0); });
  run("planned", [&] {
    return planned_capacity_bytes(lifetimes, packing::PackingEffort::kThorough,
                                  capacity_bytes.value_or(0));
  });
  return {{"event", "replay"},
          {"source", source},
          {"buffers", lifetimes.size()},
          {"peak_live_bytes", peak_live_bytes},
          {"policies", std::move(policies)}};
}

std::string replay_table(const nlohmann::json& event) {
  std::ostringstream out;
  out << event.at("source").get<std::string>() << ": " << event.at("buffers") << " buffers, "
      << format_bytes(event.at("peak_live_bytes").get<std::uint64_t>()) << " live at most\n"
      << "policy    needs                     above live   time\n";
  for (const nlohmann::json& policy : event.at("policies")) {
    const auto bytes = policy.at("capacity_bytes").get<std::uint64_t>();
    out << std::left << std::setw(10) << policy.at("policy").get<std::string>() << std::setw(12)
        << format_bytes(bytes) << std::setw(14) << bytes << std::right << std::fixed
        << std::setprecision(2) << std::setw(9)
        << 100.0 * policy.at("above_peak_live").get<double>() << "%   "
        << format_seconds(policy.at("seconds").get<double>());
    if (policy.contains("fits"))
      out << (policy.at("fits").get<bool>() ? "   fits" : "   too large");
    out << '\n';
  }
  return out.str();
}

}  // namespace sluice::replay
