// Settings go through the configuration as a user's do. So a plan by hand has every freedom that
// its keys leave, and its time is that of its exact schedule.
#include "tools/bench/plan_by_hand.hpp"

#include <utility>

#include "base/error.hpp"
#include "engine/planner/default_budgets.hpp"
#include "engine/train/plan/prepare.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

// A key of a setting and its values but "auto".
struct Choice {
  const char* key;
  std::vector<const char*> values;
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> list{
      {"memory.place.weight", {"device", "pinned", "storage"}},
      {"memory.place.gradient", {"device", "pinned", "storage"}},
      {"memory.place.optimizer", {"device", "pinned", "storage"}},
      {"memory.place.activation", {"device", "pinned", "storage"}},
      {"recompute.policy", {"none", "selective", "attention", "unit", "sqrt"}},
      {"train.order", {"microbatch", "unit"}},
      {"optimizer.placement", {"after_backward", "next_forward", "in_backward"}},
      {"memory.prefetch", {"0", "1", "2", "3"}},
  };
  return list;
}

std::string drawn_value(const Choice& choice, Draws& draws) {
  return std::string(choice.key) + "=" + choice.values[draws.below(choice.values.size())];
}

}  // namespace

Settings draw_complete_setting(Draws& draws) {
  Settings setting;
  for (const Choice& choice : choices()) setting.push_back(drawn_value(choice, draws));
  return setting;
}

Settings draw_two_settings(Draws& draws) {
  const std::size_t first = draws.below(choices().size());
  std::size_t second = draws.below(choices().size() - 1);
  if (second >= first) ++second;
  return {drawn_value(choices()[first], draws), drawn_value(choices()[second], draws)};
}

std::string settings_text(const Settings& settings) {
  std::string text;
  for (const std::string& setting : settings) text += (text.empty() ? "" : " ") + setting;
  return text;
}

std::optional<PlannedStep> plan_with(const planner::HardwareProfile& hardware,
                                     const Settings& model, const Settings& setting) {
  Settings all = model;
  all.insert(all.end(), setting.begin(), setting.end());
  try {
    config::Config config = config::parse_config("", "bench", all);
    config::check_supported(config);
    train::settle_described_backend(config, hardware);
    config.train.threads = hardware.cores;
    planner::settle_auto_budgets(config, hardware);
    train::Backend backend = train::make_described_backend(config, hardware);
    const double begin_s = thread_cpu_seconds();
    train::Prepared prepared = train::prepare_with(config, hardware, std::move(backend));
    const double cpu_s = thread_cpu_seconds() - begin_s;
    const planner::Plan* plan = prepared.plan();
    if (plan == nullptr) return std::nullopt;
    return PlannedStep{plan->step_s(), cpu_s, plan->peak_bytes};
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace sluice::bench
