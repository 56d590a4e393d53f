#include "engine/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "engine/checkpoint/durable_checkpoint.hpp"
#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateFile = "state.safetensors";
constexpr const char* kManifestFile = "manifest.json";
constexpr std::size_t kKeptCheckpoints = 2;

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return "step-" + digits;
}

// Complete checkpoints, newest first.
std::vector<fs::path> checkpoints_in(const std::string& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find('.') == std::string::npos) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename().string();
    const std::string right = b.filename().string();
    return left.size() != right.size() ? left.size() > right.size() : left > right;
  });
  return found;
}

// Empty where it cannot be read.
std::string run_of_checkpoint(const fs::path& path) {
  try {
    return load_manifest((path / kManifestFile).string()).run_id;
  } catch (const Error&) {
    return {};
  }
}

// What a run that was killed while saving left behind.
void remove_unfinished(const std::string& directory) {
  std::vector<fs::path> unfinished;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".tmp")) unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path);
}

// Names the first key, in the order of the alphabet, whose value is another one now. A key that an
// older version did not know had its default.
void check_settings(const CheckpointManifest& manifest, const std::string& where,
                    const std::map<std::string, std::string>& now) {
  const auto value_in = [](const std::map<std::string, std::string>& settings,
                           const std::string& path) {
    const auto entry = settings.find(path);
    if (entry != settings.end()) return entry->second;
    const config::ConfigKey* key = config::find_config_key(path);
    return key == nullptr ? std::string("not set") : config::format_value(*key, key->read(config::Config{}));
  };
  std::set<std::string> keys;
  for (const auto* settings : {&manifest.settings, &now}) {
    for (const auto& [key, value] : *settings) keys.insert(key);
  }
  for (const std::string& key : keys) {
    const std::string before = value_in(manifest.settings, key);
    if (before == value_in(now, key)) continue;
    if (key == config::kMatricesSetting) {
      throw InputError(where +
                       ": was made by a version whose optimizer updated attention.qkv and mlp.up "
                       "as one matrix each; this version updates q, k, v, gate and up apart, so "
                       "this run cannot go on; start a new run");
    }
    throw InputError(where + ": was made with " + key + " = " + before + ", which is " +
                     value_in(now, key) +
                     " now; resume with the configuration in the run directory's config.toml");
  }
}

}  // namespace

CheckpointFound find_checkpoint(const std::string& directory) {
  std::vector<std::string> failures;  // newest first
  for (const fs::path& path : checkpoints_in(directory)) {
    try {
      CheckpointFound found{path.string(), load_manifest((path / kManifestFile).string())};
      verify_files(found.manifest, path.string());
      for (const std::string& failure : failures) {
        log(LogLevel::kWarning, "checkpoint passed over: " + failure);
      }
      return found;
    } catch (const Error& error) {
      failures.emplace_back(error.what());
    }
  }
  throw InputError(failures.empty() ? directory + ": holds no checkpoint to resume from"
                                    : failures.front());
}

void check_checkpoint(const CheckpointFound& found, const config::Config& config, const model::Model& model,
                      const std::string& data_fingerprint) {
  const SafetensorsReader reader(found.directory + "/" + kStateFile);
  const model::ParameterTable table = config::parameter_table(config, model);
  ModelState::check_weights(reader, model, table);
  check_settings(found.manifest, found.directory, config::result_settings(config));
  ModelState::check(reader, model, table);
  check_manifest(found.manifest, found.directory, config, data_fingerprint);
}

void check_manifest(const CheckpointManifest& manifest, const std::string& where,
                    const config::Config& config, const std::string& data_fingerprint) {
  check_settings(manifest, where, config::result_settings(config));
  if (config::batch_shape(config).dtype == DType::kF16 && !manifest.loss_scale) {
    throw InputError(where + ": 'loss_scale' is missing, without which fp16 training cannot go on");
  }
  if (manifest.data_fingerprint != data_fingerprint) {
    throw InputError(where + ": was made with other data than data.paths holds now");
  }
}

void check_arithmetic(const CheckpointManifest& manifest, const std::string& where,
                      const std::string& arithmetic) {
  if (manifest.arithmetic == arithmetic) return;
  throw InputError(where + ": was computed by '" + manifest.arithmetic + "' and would go on by '" +
                   arithmetic +
                   "', whose results differ in the last bits; --accept-arithmetic goes on all the "
                   "same");
}

std::vector<EarlierCheckpoint> earlier_checkpoints(const std::string& directory,
                                                   const std::string& own_log) {
  std::vector<EarlierCheckpoint> earlier;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const fs::path& path = entry.path();
    const std::string name = path.filename().string();
    if (name.starts_with("step-")) {
      earlier.push_back({path, run_of_checkpoint(path), name.find('.') == std::string::npos});
    } else if (const std::string run = run_of_log(name);
               !run.empty() && name != fs::path(own_log).filename()) {
      earlier.push_back({path, run, true});
    }
  }
  std::sort(earlier.begin(), earlier.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return earlier;
}

void save_checkpoint(const std::string& directory, CheckpointManifest manifest, ModelState& state) {
  const fs::path target = fs::path(directory) / checkpoint_name(manifest.step);
  const fs::path temporary = target.string() + ".tmp";
  remove_unfinished(directory);
  make_directories(temporary.string());
  const std::string file = (temporary / kStateFile).string();
  state.save(file);
  manifest.weights_hash = state.weights_hash();
  manifest.files = {{kStateFile, fs::file_size(file), hash_file(file)}};
  save_manifest(manifest, (temporary / kManifestFile).string());
  fs::remove_all(target);  // the same step again, after a resume
  rename_durably(temporary.string(), target.string());

  const std::vector<fs::path> all = checkpoints_in(directory);
  for (std::size_t i = kKeptCheckpoints; i < all.size(); ++i) fs::remove_all(all[i]);
}

void load_checkpoint(const CheckpointFound& found, ModelState& state) {
  const SafetensorsReader reader(found.directory + "/" + kStateFile);
  state.load(reader);
}

}  // namespace sluice::checkpoint
