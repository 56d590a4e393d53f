// Every mesh of at most 64 ranks, each with a profile of its own, and 100 random profiles on random
// meshes. It takes minutes.
#include <gtest/gtest.h>

#include "tests/engine/planner/class_cases.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

TEST(RankClassesSweep, EveryMeshAndAHundredProfiles) {
  const TrainingBench bench;
  const std::vector<Mesh> all = meshes(64);
  std::size_t classes = 0, ranks = 0;
  for (std::size_t i = 0; i < all.size() + 100; ++i) {
    const Mesh& mesh = i < all.size() ? all[i] : all[(i * 7919) % all.size()];
    classes += expect_classes_equal_all_ranks(bench, i, mesh);
    ranks += static_cast<std::size_t>(mesh.data * mesh.pipeline * mesh.tensor);
    if (HasFatalFailure()) return;
  }
  RecordProperty("classes", static_cast<int>(classes));
  RecordProperty("ranks", static_cast<int>(ranks));
}

}  // namespace
}  // namespace sluice::planner
