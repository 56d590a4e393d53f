// A changed configuration is the settled one with other values, parsed anew, so that it is checked
// as if a person had typed it. Plans reuse the kernels of the first one: they only answer sizes.
#include "engine/train/plan/what_if.hpp"

#include <algorithm>
#include <optional>
#include <variant>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/config/shapes.hpp"

namespace sluice::train {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;
using planner::HardwareProfile;

constexpr std::uint64_t kMorePinnedBytes = 16 * kGiB;
constexpr std::uint64_t kMoreDeviceBytes = 8 * kGiB;
constexpr std::int64_t kMoreMicrobatches = 4;  // times as many

std::optional<config::Config> changed(const config::Config& config, const Settings& settings) {
  std::vector<std::string> overrides;
  for (const auto& [key, value] : settings) overrides.push_back(key + "=" + value);
  try {
    config::Config result =
        config::parse_config(config::config_to_toml(config), "the configuration", overrides);
    config::check_supported(result);
    return result;
  } catch (const InputError&) {  // a value that this configuration does not take
    return std::nullopt;
  }
}

std::optional<planner::Plan> plan_of(const config::Config& config, const HardwareProfile& hardware,
                                     const Prepared& prepared) {
  try {
    const model::Model model(config::model_shape(config), config::tensor_share(config, 0));
    const Backend& backend = prepared.backend;
    auto result = planner::make_plan(config, model, *backend.device_kernels, hardware,
                                     backend.host_kernels.get(), prepared.scope);
    if (auto* plan = std::get_if<planner::Plan>(&result)) return std::move(*plan);
  } catch (const InputError&) {  // a step that is too long to plan
  }
  return std::nullopt;
}

double tokens_of(const config::Config& config) {
  return static_cast<double>(config.train.seq * config.train.micro_batch * config.train.accumulate);
}

// The machine with one more of its drives; without a number it has one.
HardwareProfile with_another_drive(const HardwareProfile& hardware) {
  HardwareProfile more = hardware;
  const std::int64_t drives = std::max<std::int64_t>(1, hardware.storage_drives);
  const double ratio = static_cast<double>(drives + 1) / static_cast<double>(drives);
  more.storage_drives = drives + 1;
  more.storage_read_bytes_per_s *= ratio;
  more.storage_write_bytes_per_s *= ratio;
  more.storage_duplex_bytes_per_s *= ratio;
  more.storage_tbw *= ratio;
  return more;
}

std::uint64_t with_another_drive(std::uint64_t bytes, const HardwareProfile& hardware) {
  return bytes +
         bytes / static_cast<std::uint64_t>(std::max<std::int64_t>(1, hardware.storage_drives));
}

std::string bytes_text(std::uint64_t bytes) {
  return format_bytes_exact(round_up(bytes, kMiB));
}

class NextChanges {
 public:
  explicit NextChanges(const Prepared& prepared)
      : prepared_(prepared), now_(std::get<planner::Plan>(prepared.result)) {}

  void add(const std::string& name, const Settings& settings, const HardwareProfile& hardware,
           bool changes_results) {
    const auto config = changed(prepared_.config, settings);
    if (!config) return;
    const auto plan = plan_of(*config, hardware, prepared_);
    if (!plan) return;
    NextChange change{name, plan->step_s(), 0, 0, changes_results};
    change.tokens_per_s = tokens_of(*config) / change.step_s;
    change.gain = change.tokens_per_s * now_.step_s() / tokens_of(prepared_.config);
    changes_.push_back(change);
  }
  std::vector<NextChange> sorted() && {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const NextChange& a, const NextChange& b) { return a.gain > b.gain; });
    return std::move(changes_);
  }

 private:
  const Prepared& prepared_;
  const planner::Plan& now_;
  std::vector<NextChange> changes_;
};

}  // namespace

std::vector<NextChange> next_changes(const Prepared& prepared) {
  const config::Config& config = prepared.config;
  const HardwareProfile& hardware = prepared.hardware;
  NextChanges changes(prepared);
  changes.add("+" + format_bytes_exact(kMorePinnedBytes) + " pinned",
              {{"memory.pinned", bytes_text(config.memory.pinned_bytes + kMorePinnedBytes)}},
              hardware, false);
  changes.add("+" + format_bytes_exact(kMoreDeviceBytes) + " device",
              {{"memory.device", bytes_text(config.memory.device_bytes + kMoreDeviceBytes)}},
              hardware, false);
  if (std::get<planner::Plan>(prepared.result).need.storage_bytes > 0) {
    const std::uint64_t budget = with_another_drive(config.memory.storage_bytes, hardware);
    changes.add("one more drive", {{"memory.storage", bytes_text(budget)}},
                with_another_drive(hardware), false);
  }
  // A batch that was given is the key that a person would change.
  const std::int64_t more = config.train.accumulate * kMoreMicrobatches;
  const std::int64_t batch = config.train.batch * kMoreMicrobatches;
  changes.add(batch > 0 ? "train.batch=" + std::to_string(batch)
                        : "train.accumulate=" + std::to_string(more),
              {{"train.batch", std::to_string(batch)}, {"train.accumulate", std::to_string(more)}},
              hardware, true);
  if (config.optimizer.moments != config::Config::Moments::k8Bit) {
    changes.add("optimizer.moments=8bit", {{"optimizer.moments", "8bit"}}, hardware, true);
  }
  return std::move(changes).sorted();
}

std::vector<planner::OtherChange> changes_that_fit(const Prepared& refused) {
  const config::Config& config = refused.config;
  std::vector<planner::OtherChange> found;
  const auto fits = [&](const Settings& settings) {
    const auto other = changed(config, settings);
    return other && plan_of(*other, refused.hardware, refused).has_value();
  };
  if (config.recompute.policy == config::Config::Recompute::kNone) {
    const Settings settings{{"recompute.policy", "auto"}};
    if (fits(settings)) found.push_back({settings, false});
  }
  // The tree of stage 3 has other bits than a ring.
  if (config.parallel.data > 1 && config.parallel.zero < 3 && !config.parallel.has_server_order() &&
      config.parallel.reduction == config::Config::GradientSum::kTree) {
    Settings settings{{"parallel.zero", "3"}};
    if (config.parallel.server) settings.emplace_back("parallel.server", "false");
    if (fits(settings)) found.push_back({settings, false});
  }
  // One sum in the order of micro-batches is of shards alone, so no rank keeps sums of whole units.
  if (config.parallel.data > 1 && config.train.fold_groups > 1) {
    Settings settings{{"train.fold_groups", "1"}};
    if (config.parallel.node_ranks > 0) settings.emplace_back("parallel.node_ranks", "0");
    if (config.memory.place.partial != config::Config::Place::kAuto) {
      settings.emplace_back("memory.place.partial", "auto");
    }
    if (fits(settings)) found.push_back({settings, true});
  }
  // The largest of smaller micro-batches. The batch stays, but its gradients are rounded once for
  // each micro-batch.
  for (std::int64_t size = config.train.micro_batch; size % 2 == 0;) {
    size /= 2;
    const Settings settings{
        {"train.micro_batch", std::to_string(size)},
        {"train.accumulate",
         std::to_string(config.train.accumulate * (config.train.micro_batch / size))}};
    if (!fits(settings)) continue;
    found.push_back({settings, true});
    break;
  }
  if (config.optimizer.moments != config::Config::Moments::k8Bit) {
    const Settings settings{{"optimizer.moments", "8bit"}};
    if (fits(settings)) found.push_back({settings, true});
  }
  return found;
}

}  // namespace sluice::train
