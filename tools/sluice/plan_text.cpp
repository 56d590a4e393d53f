#include "tools/sluice/plan_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/memory_kinds.hpp"
#include "base/units.hpp"

namespace sluice::cli {
namespace {

using run::RunEvent;

// "12,345"
std::string grouped(double value) {
  std::string digits = std::to_string(std::llround(value));
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

// Three significant digits: "0.567", "56.7", "567".
std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : "%.2f", value);
  return text;
}

std::string percent(double share) {
  return three_digits(100 * share) + "%";
}

std::string speed_line(const RunEvent& outlook) {
  std::string line = "speed       " + grouped(outlook["tokens_per_step"].get<double>()) +
                     " tokens a step: " + grouped(outlook["tokens_per_s"].get<double>()) +
                     " tokens/s, " + three_digits(outlook["flops_per_s"].get<double>() * 1e-12) +
                     " TFLOP/s";
  if (outlook["mfu"].is_number()) {
    line += ", " + percent(outlook["mfu"].get<double>()) + " MFU of " +
            three_digits(outlook["peak_flops_per_s"].get<double>() * 1e-12) + " TFLOP/s" +
            (outlook.contains("rank_links") ? " a rank" : "");
  }
  return line + " (simulated)\n";
}

// The shares of the critical path, the longest first, and how far above its lower bound a step is.
std::string path_lines(const RunEvent& outlook, double step_s) {
  std::vector<std::pair<double, std::string>> shares;
  double all_s = 0;
  for (const auto& [name, seconds] : outlook["critical_path_s"].items()) {
    shares.emplace_back(seconds.get<double>(), name);
    all_s += shares.back().first;
  }
  std::sort(shares.rbegin(), shares.rend());
  std::string line;
  for (const auto& [seconds, name] : shares) {
    const double share = seconds / all_s;
    if (share < 0.005) continue;
    line +=
        (line.empty() ? "" : ", ") + name + " " + std::to_string(std::lround(100 * share)) + "%";
  }
  line = "path        " + line + " of the critical path\n";
  if (outlook["bound_s"].is_number()) {
    const auto bound_s = outlook["bound_s"].get<double>();
    line += "bound       any plan takes at least " + format_seconds(bound_s) +
            " a step; this one is at most " +
            std::to_string(std::lround(std::ceil(100 * (step_s / bound_s - 1)))) + "% above that\n";
  }
  return line;
}

std::string row_text(const std::string& what, const RunEvent* bytes, const std::string& why) {
  char text[64];
  std::snprintf(text, sizeof text, "%-12s", what.c_str());
  std::string line = text;
  for (const Tier tier : kTiers) {
    const std::string name(tier_name(tier));
    const std::uint64_t amount = bytes == nullptr ? 0 : (*bytes)[name].get<std::uint64_t>();
    const std::string cell = bytes == nullptr ? name : amount == 0 ? "-" : format_bytes(amount);
    std::snprintf(text, sizeof text, "%-12s", cell.c_str());
    line += text;
  }
  return line + why + "\n";
}

std::string memory_table(const RunEvent& outlook) {
  std::string table = row_text("what", nullptr, "why");
  for (const RunEvent& row : outlook["memory"]) {
    table += row_text(row["what"].get<std::string>(), &row["bytes"], row["why"].get<std::string>());
  }
  return table;
}

std::string break_even_line(const RunEvent& outlook) {
  const RunEvent& even = outlook["break_even"];
  if (even.is_null())
    return "break-even  none: at any number of tokens a step, traffic takes longer than compute\n";
  const auto tokens = even["tokens_per_step"].get<double>();
  if (tokens <= 0) return {};
  return "break-even  at " + grouped(tokens) + " tokens a step compute takes as long as " +
         even["with"].get<std::string>() + "\n";
}

std::string endurance_line(const RunEvent& outlook) {
  const RunEvent& wear = outlook["wear"];
  const auto bytes = wear["bytes_per_day"].get<double>();
  if (bytes <= 0) return {};
  std::string line = "endurance   " + three_digits(bytes * 1e-12) + " TB written a day";
  if (wear["days_to_endurance"].is_number()) {
    line += "; the drives' rated endurance lasts " +
            grouped(wear["days_to_endurance"].get<double>()) + " days";
  }
  return line + "\n";
}

// The links that collectives were priced with. Ranks of one node use the network only if some lie
// elsewhere.
std::string links_line(const RunEvent& outlook) {
  if (!outlook.contains("rank_links")) return {};
  const RunEvent& links = outlook["rank_links"];
  const auto rate = [&](const char* key) {
    return three_digits(links[key].get<double>() * 1e-9) + " GB/s";
  };
  std::string line = "links       " + rate("bytes_per_s") + " and " +
                     format_seconds(links["latency_s"].get<double>()) + " between ranks";
  if (links["node_bytes_per_s"].get<double>() > 0) {
    line += ", " + rate("node_bytes_per_s") + " for a node";
  }
  const auto node_ranks = links["node_ranks"].get<int>();
  if (node_ranks > 0) {
    line += "; " + std::to_string(node_ranks) + " ranks a node, " + rate("network_bytes_per_s") +
            " between nodes";
  }
  return line + " (" + links["source"].get<std::string>() + ")\n";
}

// Changes that keep results, then those that do not; without those that gain nothing.
std::string next_lines(const RunEvent& changes) {
  constexpr double kLeastGain = 1.01;
  std::string lines;
  for (const bool results : {false, true}) {
    std::string line;
    for (const RunEvent& change : changes) {
      const auto gain = change["gain"].get<double>();
      if (change["changes_results"].get<bool>() != results || gain < kLeastGain) continue;
      line += (line.empty() ? "" : " | ") + change["change"].get<std::string>() + " " +
              three_digits(gain) + "x";
    }
    if (!results)
      lines += "next        " + (line.empty() ? "nothing that was tried is faster" : line) + "\n";
    if (results && !line.empty()) lines += "            " + line + " (other results)\n";
  }
  return lines;
}

}  // namespace

std::string outlook_text(const RunEvent& outlook) {
  std::string text =
      speed_line(outlook) + path_lines(outlook, outlook["step_time_s"].get<double>());
  text += memory_table(outlook) + links_line(outlook) + break_even_line(outlook) +
          endurance_line(outlook);
  if (outlook.contains("next")) text += next_lines(outlook["next"]);
  if (outlook.contains("explain")) {
    for (const RunEvent& line : outlook["explain"]) {
      text += "tried       " + line.get<std::string>() + "\n";
    }
  }
  return text;
}

std::string meshes_text(const RunEvent& meshes) {
  std::vector<std::pair<double, std::string>> planned;
  std::size_t refused = 0, alike = 0;
  std::vector<double> left_out_s;
  for (const RunEvent& mesh : meshes) {
    const bool fits = mesh["step_time_s"].is_number();
    const bool has_plan = mesh["planned"].get<bool>();
    if (!mesh["why"].get<std::string>().empty()) {
      ++refused;
    } else if (!fits) {
      left_out_s.push_back(mesh["bound_s"].get<double>());
    } else if (!has_plan) {
      ++alike;
    }
    if (!fits) continue;
    const auto count = [&](const char* key) { return std::to_string(mesh[key].get<int>()); };
    const auto step_s = mesh["step_time_s"].get<double>();
    planned.emplace_back(step_s, "mesh        data " + count("data") + ", tensor " +
                                     count("tensor") + ", pipeline " + count("pipeline") +
                                     ", zero " + count("zero") + ": " + format_seconds(step_s) +
                                     " a step, at least " +
                                     format_seconds(mesh["bound_s"].get<double>()) +
                                     (has_plan ? "\n" : ", as with zero 1\n"));
  }
  std::stable_sort(planned.begin(), planned.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  std::string text;
  for (const auto& [seconds, line] : planned) text += line;
  text += "meshes      " + std::to_string(meshes.size()) +
          " possible: " + std::to_string(planned.size() - alike) + " planned, " +
          std::to_string(alike) + " with the plan of another, " + std::to_string(refused) +
          " do not fit, " + std::to_string(left_out_s.size()) + " cannot be faster";
  if (!left_out_s.empty()) {
    text += ", at least " + format_seconds(*std::min_element(left_out_s.begin(), left_out_s.end()));
  }
  return text + "\n";
}

}  // namespace sluice::cli
