// Data-parallel ranks divide the micro-batches of a step evenly, and each rank folds whole subtrees
// of the groups' tree (docs/design/ranks.md).
#include "engine/config/config.hpp"
#include "engine/schedule/rank_view.hpp"

namespace sluice::config {
namespace {

// The largest number of groups up to `groups`, or else the least, of which each rank folds a power
// of two.
std::int64_t foldable_groups(std::int64_t groups, std::int64_t ranks) {
  std::int64_t next = ranks;
  while (next * 2 <= groups) next *= 2;
  return next;
}

}  // namespace

std::optional<RanksProblem> ranks_problem(const Config& config) {
  const std::int64_t ranks = config.parallel.data;
  if (ranks == 1) return std::nullopt;
  const std::string ranks_text = "parallel.data = " + std::to_string(ranks);
  const std::int64_t accumulate = config.train.accumulate;
  if (accumulate != Config::kAutoCount && accumulate % ranks != 0) {
    return RanksProblem{"train.accumulate",
                        "train.accumulate is " + std::to_string(accumulate) +
                            ", the micro-batches of a step over all ranks, and must be a multiple "
                            "of " +
                            ranks_text + ", such as " +
                            std::to_string((accumulate / ranks + 1) * ranks)};
  }
  const std::int64_t groups = config.train.fold_groups;
  if (!schedule::can_fold(groups, ranks)) {
    return RanksProblem{"train.fold_groups",
                        "train.fold_groups is " + std::to_string(groups) + ", and with " +
                            ranks_text +
                            " it must be 1 or give each rank a power of two of groups, such as " +
                            std::to_string(foldable_groups(groups, ranks))};
  }
  return std::nullopt;
}

}  // namespace sluice::config
