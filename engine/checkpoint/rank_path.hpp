// The directory of a rank's own files beneath one that a job shares.
#pragma once

#include <string>

namespace sluice::checkpoint {

// PATH/rank-R; the first rank uses the path itself.
inline std::string rank_path(const std::string& path, int rank) {
  return rank == 0 ? path : path + "/rank-" + std::to_string(rank);
}

}  // namespace sluice::checkpoint
