// Records of durable commits as nobody wrote them: the newest one of a rank's log, changed.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/checkpoint/durable_record.hpp"
#include "engine/checkpoint/rank_path.hpp"
#include "offload/state_log.hpp"

namespace sluice::testing {

// Changes the newest record of a rank's log, and leaves it as the only one.
inline void edit_record(const std::string& checkpoints, int rank,
                        const std::function<void(nlohmann::json&)>& edit) {
  const std::string log = checkpoint::logs_in(checkpoint::rank_path(checkpoints, rank)).at(0);
  const auto engine = offload::make_storage_engine("posix", {});
  auto record = nlohmann::json::parse(offload::StateLog::read(*engine, log).records.at(0).text);
  edit(record);
  const auto bytes = std::filesystem::file_size(log);
  std::filesystem::remove(log);
  offload::StateLog(*engine, log, bytes).append(record.dump());
}

// With its links as they are.
inline void copy_run(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(
      from, to,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
}

}  // namespace sluice::testing
