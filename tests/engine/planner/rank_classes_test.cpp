// A plan by classes of ranks gives each rank the times, bytes and memory that its own list gives
// it.
#include <gtest/gtest.h>

#include "tests/engine/planner/class_cases.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

// Every 29th mesh of at most 64 ranks here, and all of them in the sweep.
TEST(RankClasses, OneListForEachClassGivesWhatAllRanksGive) {
  const TrainingBench bench;
  const std::vector<Mesh> all = meshes(64);
  std::size_t classes = 0, ranks = 0;
  for (std::size_t i = 3; i < all.size(); i += 29) {
    classes += expect_classes_equal_all_ranks(bench, i, all[i]);
    ranks += static_cast<std::size_t>(all[i].data * all[i].pipeline * all[i].tensor);
  }
  EXPECT_LT(classes, ranks);
}

}  // namespace
}  // namespace sluice::planner
