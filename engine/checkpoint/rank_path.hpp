// The directory of a rank's own files beneath one that a job shares.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace sluice::checkpoint {

inline constexpr std::string_view kRankDirectory = "rank-";

// PATH/rank-R; the first rank uses the path itself.
inline std::string rank_path(const std::string& path, int rank) {
  return rank == 0 ? path : path + "/" + std::string(kRankDirectory) + std::to_string(rank);
}

inline std::vector<std::string> rank_paths(std::vector<std::string> paths, int rank) {
  for (std::string& path : paths) path = rank_path(path, rank);
  return paths;
}

// The rank whose directory has this name; none if it is no name that rank_path() gives.
inline std::optional<int> rank_of_directory(std::string_view name) {
  if (!name.starts_with(kRankDirectory)) return std::nullopt;
  const std::string_view digits = name.substr(kRankDirectory.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  if (!whole || rank <= 0 || std::to_string(rank) != digits) return std::nullopt;
  return rank;
}

}  // namespace sluice::checkpoint
