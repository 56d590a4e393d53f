#include "engine/host/session_commits.hpp"

#include <filesystem>
#include <optional>
#include <utility>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/memory_kinds.hpp"
#include "offload/storage_file.hpp"

namespace sluice::host {
namespace {

// Tells the record from that of a training run, which a session cannot take.
constexpr const char* kKind = "session";
constexpr const char* kKindSetting = "kind";

std::string checked_directory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    throw InputError("commit_path '" + shown(directory) + "' is not a directory");
  }
  return std::filesystem::absolute(directory).string();
}

std::map<std::string, std::string> settings() {
  return {{kKindSetting, kKind}};
}

}  // namespace

std::uint64_t SessionCommits::log_bytes(const HostEngine& engine, const std::string& directory,
                                        std::size_t units) {
  std::vector<std::string> paths = engine.options().storage_paths;
  if (paths.empty()) {
    throw InputError("commit_path needs an engine with storage_paths: the state is kept there");
  }
  paths.push_back(checked_directory(directory));
  return offload::StateLog::file_bytes(
      runtime::state_record_bytes(units * kStateKindCount, settings(), paths));
}

SessionCommits::SessionCommits(HostEngine& engine, offload::StorageEngine& storage,
                               const std::string& directory, const RunId& run,
                               std::uint64_t log_bytes)
    : engine_(engine),
      directory_(checked_directory(directory)),
      lock_("commit_path", directory_, run, engine.options().storage_paths),
      log_charge_(engine.ledger().reserve(Tier::kStorage, Category::kOptimizer, log_bytes)),
      files_(directory_, run.hex(), engine.options().storage_paths) {
  checkpoint::remove_files_without_commit(directory_, engine.options().storage_paths);
  log_ = std::make_unique<offload::StateLog>(storage, files_.log_path(), log_bytes);
}

void SessionCommits::watch(const offload::StripedSpace& space) {
  files_.watch(space.file_paths());
  files_.watch({files_.log_path()});
}

runtime::DurableState::Record SessionCommits::record(std::uint64_t updates,
                                                     const std::string& fingerprint,
                                                     offload::TaggedSpace& storage) {
  checkpoint::CheckpointManifest manifest;
  manifest.step = static_cast<std::int64_t>(updates);
  manifest.run_id = storage.run().hex();
  manifest.data_fingerprint = fingerprint;
  manifest.settings = settings();
  return [this, manifest = std::move(manifest),
          &storage](const std::vector<runtime::SavedHome>& homes) {
    files_.check_watched();
    files_.keep();
    return checkpoint::format_state_record(
        manifest, {storage.run(), files_.log_path(), offload::file_id(files_.log_path()),
                   storage.space().file_paths(), storage.space().bytes(), homes,
                   storage.space().shares(), /*ranks=*/1});
  };
}

void SessionCommits::retire_others() {
  if (std::exchange(has_retired_, true)) return;
  checkpoint::retire_other_logs(directory_, files_.log_path(), engine_.options().storage_paths, {});
}

std::string parameter_fingerprint(const SessionSpace& space, const model::ParameterTable& table) {
  Digest digest;
  for (const SessionParameter& parameter : space.parameters()) {
    if (parameter.unit < 0) continue;
    digest.update_text(parameter.options.name);
    digest.update_u64(static_cast<std::uint64_t>(parameter.unit));
    digest.update_u64(parameter.first_elem);
    digest.update_u64(parameter.options.shape.size());
    for (const std::int64_t size : parameter.options.shape) {
      digest.update_u64(static_cast<std::uint64_t>(size));
    }
    const kernels::OptimizerOptions& rule = table.options(static_cast<std::size_t>(parameter.unit));
    digest.update_u64(static_cast<std::uint64_t>(rule.weight));
    digest.update_u64(static_cast<std::uint64_t>(rule.rule));
    for (const StateKind kind : kOptimizerKinds) {
      const kernels::StateLayout layout = kernels::state_layout(rule, kind);
      digest.update_u64(static_cast<std::uint64_t>(layout.extent));
      digest.update_u64(static_cast<std::uint64_t>(layout.dtype));
    }
  }
  return digest.finish().hex();
}

checkpoint::DurableFound find_commit(const std::string& directory,
                                     const std::vector<std::string>& storage_paths) {
  std::vector<checkpoint::PassedOver> passed_over;
  std::optional<checkpoint::DurableFound> found =
      checkpoint::find_durable(directory, storage_paths, passed_over);
  const std::int64_t step = found ? found->manifest.step : -1;
  for (const checkpoint::PassedOver& passed : passed_over) {
    if (passed.step >= 0 && passed.step <= step) continue;
    if (passed.absent) {
      throw InputError(passed.why + "; put it back, or remove '" + passed.log + "'");
    }
    if (!found) throw InputError(passed.why);
    log(LogLevel::kWarning, "commit passed over: " + passed.why);
  }
  if (!found) throw InputError("'" + shown(directory) + "' has no commit of a session");
  const auto kind = found->manifest.settings.find(kKindSetting);
  if (kind == found->manifest.settings.end() || kind->second != kKind) {
    throw InputError(found->log + ": is of a training run, not of a session");
  }
  return std::move(*found);
}

}  // namespace sluice::host
