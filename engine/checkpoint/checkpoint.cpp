#include "engine/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateFile = "state.safetensors";
constexpr const char* kManifestFile = "manifest.json";
constexpr std::size_t kKeptCheckpoints = 2;
constexpr const char* kDataKey = "data.paths";
constexpr const char* kStepsKey = "train.steps";

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return "step-" + digits;
}

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kUnfinished = ".tmp";

// The step of a complete checkpoint's directory; none for any other name, such as a user's copy.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc{} || last != end || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

// Complete checkpoints, newest first.
std::vector<fs::path> checkpoints_in(const std::string& directory) {
  std::vector<fs::path> found;
  for (const fs::path& path : list_directory(directory)) {
    if (step_of(path)) found.push_back(path);
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return *step_of(a) > *step_of(b); });
  return found;
}

CheckpointFound verified(const fs::path& path) {
  CheckpointFound found{path.string(), load_manifest((path / kManifestFile).string())};
  if (path.filename() != checkpoint_name(found.manifest.step)) {
    throw InputError((path / kManifestFile).string() + ": 'step' is " +
                     std::to_string(found.manifest.step) + ", which is not the directory's");
  }
  verify_files(found.manifest, path.string());
  return found;
}

// The default value of the key `path`, as TOML.
std::string default_of(const std::string& path) {
  const config::ConfigKey* key = config::find_config_key(path);
  if (key == nullptr) return "not set";
  return config::format_value(*key, key->read(config::Config{}));
}

std::string value_in(const std::map<std::string, std::string>& settings, const std::string& path) {
  const auto entry = settings.find(path);
  return entry != settings.end() ? entry->second : default_of(path);
}

// A key that determines the result of the run or of the configuration, with its values. Empty: it
// does not stand in those settings.
struct ChangedSetting {
  std::string path;
  std::optional<std::string> before, now;
  bool is_choice = false;  // a choice decides whether other keys count, so it is named before them
};

// The sentence that names the change. Settings leave out keys without effect, and such a key may
// have any value: no sentence claims one.
std::string describe_change(const ChangedSetting& change, const config::Config& config) {
  if (!change.before) {
    return "does not name " + change.path + ", which determines the result and is " + *change.now +
           " now";
  }
  const std::string made = "was made with " + change.path + " = " + *change.before + ", which ";
  if (change.now) return made + "is " + *change.now + " now";
  const config::ConfigKey* key = config::find_config_key(change.path);
  const std::string given =
      key == nullptr ? "not set" : config::format_value(*key, key->read(config));
  return made + (given == *change.before ? "has no effect now" : "is " + given + " now");
}

// The lowest is named. A key that has the same value and no effect any more follows from another
// change; so it comes last. Then choices go before other keys, and values that both settings have
// before those that the run or the configuration alone has.
std::tuple<bool, bool, int, std::string> order_of(const ChangedSetting& change,
                                                  const config::Config& config) {
  const bool follows =
      change.before && !change.now && describe_change(change, config).ends_with("no effect now");
  const int sides = change.before && change.now ? 0 : change.before ? 1 : 2;
  return {follows, !change.is_choice, sides, change.path};
}

// Throws InputError naming a key that has another value now. Data are compared by fingerprint and
// not by path, and check_steps() compares the number of steps.
void check_settings(const CheckpointManifest& manifest, const std::string& where,
                    const config::Config& config) {
  const std::map<std::string, std::string> now = config::result_settings(config);
  std::set<std::string> keys;
  for (const auto* settings : {&manifest.settings, &now}) {
    for (const auto& [key, value] : *settings) keys.insert(key);
  }
  keys.erase(kDataKey);
  keys.erase(kStepsKey);
  for (const char* key : config::kGroupKeys) keys.erase(key);
  std::vector<ChangedSetting> changes;
  for (const std::string& path : keys) {
    ChangedSetting change;
    change.path = path;
    if (const auto at = manifest.settings.find(path); at != manifest.settings.end()) {
      change.before = at->second;
    }
    if (const auto at = now.find(path); at != now.end()) change.now = at->second;
    const config::ConfigKey* key = config::find_config_key(path);
    change.is_choice = key != nullptr && key->kind == config::ConfigKind::kChoice;
    // A version that did not know the key had its default; a key that only some rules read is
    // always written where it is read.
    if (!change.before && key != nullptr && key->determines_result)
      change.before = default_of(path);
    if (change.before.value_or("") == change.now.value_or(default_of(path))) continue;
    changes.push_back(std::move(change));
  }
  if (changes.empty()) return;
  const auto& first = *std::min_element(changes.begin(), changes.end(),
                                        [&](const ChangedSetting& a, const ChangedSetting& b) {
                                          return order_of(a, config) < order_of(b, config);
                                        });
  if (first.path == config::kMatricesSetting) {
    throw InputError(where +
                     ": was made by a version whose optimizer updated attention.qkv and mlp.up "
                     "as one matrix each; this version updates q, k, v, gate and up apart, so "
                     "this run cannot go on; start a new run");
  }
  throw InputError(where + ": " + describe_change(first, config) +
                   "; resume with the configuration in the run directory's config.toml");
}

// The run may go on for longer, or end earlier, but not before the step that it has reached.
void check_steps(const CheckpointManifest& manifest, const std::string& where,
                 const config::Config& config) {
  if (config.train.steps >= manifest.step) return;
  // A run that --steps took beyond its own train.steps.
  const auto before = manifest.settings.find(kStepsKey);
  if (before != manifest.settings.end() && before->second == std::to_string(config.train.steps)) {
    return;
  }
  throw InputError(where + ": train.steps is " + std::to_string(config.train.steps) +
                   " now, and this run has reached step " + std::to_string(manifest.step) +
                   "; name at least that");
}

void check_data(const CheckpointManifest& manifest, const std::string& where,
                const config::Config& config, const std::string& fingerprint) {
  if (manifest.data_fingerprint == fingerprint) return;
  const auto before = manifest.settings.find(kDataKey);
  throw InputError(where + ": was made with other data: " +
                   (before == manifest.settings.end() ? "" : before->second + " with ") +
                   "fingerprint " + manifest.data_fingerprint +
                   "; data.paths = " + value_in(config::result_settings(config), kDataKey) +
                   " now has fingerprint " + fingerprint);
}

}  // namespace

bool is_unfinished_checkpoint(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(kPrefix) && name.ends_with(kUnfinished);
}

CheckpointFound find_checkpoint(const std::string& directory) {
  std::vector<std::string> failures;  // newest first
  for (const fs::path& path : checkpoints_in(directory)) {
    try {
      CheckpointFound found = verified(path);
      for (const std::string& failure : failures) {
        log(LogLevel::kWarning, "checkpoint passed over: " + failure);
      }
      return found;
    } catch (const UnknownVersion&) {
      throw;  // it may be whole: an older checkpoint is no answer to it
    } catch (const Error& error) {
      failures.emplace_back(error.what());
    }
  }
  throw InputError(failures.empty() ? directory + ": holds no checkpoint to resume from"
                                    : failures.front());
}

CheckpointFound open_checkpoint(const std::string& directory) {
  return {directory, load_manifest(directory + "/" + kManifestFile)};
}

void check_checkpoint(const CheckpointFound& found, const config::Config& config,
                      const model::Model& model, const std::string& data_fingerprint) {
  const SafetensorsReader reader(found.directory + "/" + kStateFile);
  const model::ParameterTable table = config::parameter_table(config, model);
  ModelState::check_weights(reader, model, table);
  check_settings(found.manifest, found.directory, config);
  ModelState::check(reader, model, table);
  check_manifest(found.manifest, found.directory, config, data_fingerprint);
  if (ModelState::weights_hash_in(reader, model, table) != found.manifest.weights_hash) {
    throw InputError(found.directory + ": the weights are not those of its manifest: their hash " +
                     "is not 'weights_hash'");
  }
}

void check_manifest(const CheckpointManifest& manifest, const std::string& where,
                    const config::Config& config, const std::string& data_fingerprint) {
  check_settings(manifest, where, config);
  if (config::batch_shape(config).dtype == DType::kF16 && !manifest.loss_scale) {
    throw InputError(where + ": 'loss_scale' is missing, without which fp16 training cannot go on");
  }
  check_steps(manifest, where, config);
  check_data(manifest, where, config, data_fingerprint);
}

void check_arithmetic(const CheckpointManifest& manifest, const std::string& where,
                      const std::string& arithmetic) {
  if (manifest.arithmetic == arithmetic) return;
  throw InputError(where + ": was computed by '" + manifest.arithmetic + "' and would go on by '" +
                   arithmetic +
                   "', whose results differ in the last bits; --accept-arithmetic goes on all the "
                   "same");
}

void save_checkpoint(const std::string& directory, CheckpointManifest manifest, ModelState& state) {
  const fs::path target = fs::path(directory) / checkpoint_name(manifest.step);
  const fs::path temporary = target.string() + std::string(kUnfinished);
  const std::string file = (temporary / kStateFile).string();
  if (state.writes_files()) {
    // A run that was killed while it saved left its part.
    for (const fs::path& path : list_directory(directory)) {
      if (is_unfinished_checkpoint(path)) fs::remove_all(path);
    }
    make_directories(temporary.string());
  }
  state.save(file);
  manifest.weights_hash = state.weights_hash();
  if (!state.writes_files()) return;
  manifest.files = {{kStateFile, fs::file_size(file), hash_file(file)}};
  save_manifest(manifest, (temporary / kManifestFile).string());
  fs::remove_all(target);  // the same step again, after a resume
  rename_durably(temporary.string(), target.string());

  // Checkpoints of later steps do not count. They did not verify, or the run would have resumed
  // from them.
  std::vector<fs::path> all = checkpoints_in(directory);
  std::erase_if(all, [&](const fs::path& path) { return *step_of(path) > manifest.step; });
  for (std::size_t i = kKeptCheckpoints; i < all.size(); ++i) fs::remove_all(all[i]);
}

void load_checkpoint(const CheckpointFound& found, ModelState& state) {
  const SafetensorsReader reader(found.directory + "/" + kStateFile);
  state.load(reader);
}

}  // namespace sluice::checkpoint
