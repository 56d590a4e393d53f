// Each pair has one automatic plan. The same settings are drawn for all pairs.
#include "tools/bench/plan_quality.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "tools/bench/plan_by_hand.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr double kAsFast = 0.01;  // settings that gain more are listed
constexpr double kSlow = 0.5;     // CPU seconds of a plan with everything by hand

struct Pair {
  const char* name;
  const char* machine;
  Settings model;
};

Settings llama(const char* layers, const char* hidden, const char* ffn, const char* heads,
               const char* kv_heads, Settings more = {}) {
  Settings settings{"model.family=llama",
                    std::string("model.layers=") + layers,
                    std::string("model.hidden=") + hidden,
                    std::string("model.ffn=") + ffn,
                    std::string("model.heads=") + heads,
                    std::string("model.kv_heads=") + kv_heads,
                    "model.vocab=32000",
                    "train.seq=4096",
                    "train.micro_batch=1",
                    "optimizer.states=split"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings gpt2(const char* layers, const char* hidden, const char* heads, Settings more) {
  Settings settings{"model.family=gpt2",
                    std::string("model.layers=") + layers,
                    std::string("model.hidden=") + hidden,
                    std::string("model.heads=") + heads,
                    "model.vocab=50257",
                    "train.seq=1024",
                    "train.micro_batch=1",
                    "optimizer.states=split"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

const std::vector<Pair>& all_pairs() {
  static const std::vector<Pair> pairs{
      {"7 B, 4090", "rtx4090-64g-1nvme", llama("32", "4096", "11008", "32", "32")},
      {"8 B, 4090, 12 drives", "rtx4090-256g-12nvme", llama("32", "4096", "14336", "32", "8")},
      {"1.56 B x 16, 4090, 6/12 GiB", "rtx4090-64g-1nvme",
       gpt2("48", "1600", "25",
            {"train.accumulate=16", "memory.device=6GiB", "memory.pinned=12GiB"})},
      {"1.56 B x 4, 4090, 3/4 GiB", "rtx4090-64g-1nvme",
       gpt2("48", "1600", "25",
            {"train.accumulate=4", "memory.device=3GiB", "memory.pinned=4GiB"})},
      {"7 B, 5090", "rtx5090-192g-1nvme", llama("32", "4096", "11008", "32", "32")},
      {"0.36 B x 4, no clipping, 4090, 1/2 GiB", "rtx4090-64g-1nvme",
       gpt2("24", "1024", "16",
            {"train.accumulate=4", "train.clip=0", "memory.device=1GiB", "memory.pinned=2GiB"})},
      {"7 B x 4, H200", "h200-128g-1nvme",
       llama("32", "4096", "11008", "32", "32", {"train.accumulate=4"})},
      {"13 B, 4090", "rtx4090-64g-1nvme", llama("40", "5120", "13824", "40", "40")},
      {"1.56 B x 8, 5090, 12/24 GiB", "rtx5090-192g-1nvme",
       gpt2("48", "1600", "25",
            {"train.accumulate=8", "memory.device=12GiB", "memory.pinned=24GiB"})},
      {"32 B, H100", "h100-512g-4nvme", llama("60", "6656", "17920", "52", "52")},
      {"0.1 B x 16, 4090, 384/768 MiB", "rtx4090-64g-1nvme",
       gpt2("24", "512", "8",
            {"train.accumulate=16", "memory.device=384MiB", "memory.pinned=768MiB"})},
  };
  return pairs;
}

std::optional<PlannedStep> plan_on(const Pair& pair, const Settings& setting) {
  const planner::HardwareProfile hardware =
      planner::load_named_profile(pair.machine, planner::bundled_profile_directory());
  return plan_with(hardware, pair.model, setting);
}

json compare(const Pair& pair, const PlannedStep& automatic, int count, const char* purpose,
             Settings (*draw)(Draws&)) {
  Draws draws(0, purpose);
  int fits = 0;
  double most_gain = -1;
  double worst_cpu_s = 0;
  int slow = 0;
  std::string best;
  json faster = json::array();
  for (int i = 0; i < count; ++i) {
    const Settings setting = draw(draws);
    const std::optional<PlannedStep> by_hand = plan_on(pair, setting);
    if (!by_hand) continue;
    ++fits;
    worst_cpu_s = std::max(worst_cpu_s, by_hand->cpu_s);
    if (by_hand->cpu_s > kSlow) ++slow;
    const double gain = automatic.step_s / by_hand->step_s - 1;
    if (gain <= std::min(most_gain, kAsFast)) continue;
    std::string text = settings_text(setting);
    if (gain > kAsFast) faster.push_back({{"gain", gain}, {"setting", text}});
    if (gain <= most_gain) continue;
    most_gain = gain;
    best = std::move(text);
  }
  return {{"settings", count},
          {"fits", fits},
          {"most_gain", most_gain},
          {"setting", best},
          {"faster", std::move(faster)},
          {"worst_cpu_s", worst_cpu_s},
          {"slow", slow}};
}

}  // namespace

int plan_quality_pairs() {
  return static_cast<int>(all_pairs().size());
}

json measure_plan_quality(int first, int last, int settings) {
  json list = json::array();
  double complete_gain = -1;
  double complete_cpu_s = 0;
  double two_gain = -1;
  for (int i = first; i <= last; ++i) {
    const Pair& pair = all_pairs()[static_cast<std::size_t>(i - 1)];
    const std::optional<PlannedStep> automatic = plan_on(pair, {});
    if (!automatic) throw InternalError(std::string("bench plan: no plan for ") + pair.name);
    json complete =
        compare(pair, *automatic, settings, "bench/plan/complete", draw_complete_setting);
    json two = compare(pair, *automatic, settings, "bench/plan/two", draw_two_settings);
    complete_gain = std::max(complete_gain, complete["most_gain"].get<double>());
    complete_cpu_s = std::max(complete_cpu_s, complete["worst_cpu_s"].get<double>());
    two_gain = std::max(two_gain, two["most_gain"].get<double>());
    list.push_back({{"pair", pair.name},
                    {"step_s", automatic->step_s},
                    {"cpu_s", automatic->cpu_s},
                    {"complete", std::move(complete)},
                    {"two", std::move(two)}});
  }
  return {{"pairs", std::move(list)},
          {"complete_most_gain", complete_gain},
          {"complete_worst_cpu_s", complete_cpu_s},
          {"two_most_gain", two_gain}};
}

}  // namespace sluice::bench
