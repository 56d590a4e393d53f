// Meshes of tensor groups with data-parallel ranks and stages, every ZeRO stage, recomputation and
// all places of state: each has the bits of its tensor group alone.
#include "tests/engine/schedule/world/tensor_worlds.hpp"
#include "tests/support/reshard.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_training.hpp"

namespace sluice::train {
namespace {

using namespace testing;

TEST(TensorSweep, MeshesHaveTheBitsOfTheirGroup) {
  for (std::size_t i = 0; i < sweep(60); ++i) {
    expect_group_bits(i);
    if (HasFatalFailure()) return;
  }
}

// Symbolically, each under an adverse timing.
TEST(TensorSweep, AnyMeshMakesTheTermsOfItsGroup) {
  std::size_t tried = 0;
  for (std::size_t i = 0; tried < 840; ++i) {
    tried += expect_groups_terms(tensor_world(i * 523 % kTensorWorlds)) ? 1 : 0;
    if (HasFailure()) return;
  }
}

TEST(TensorSweep, MeshesHaveTheBitsOfTheirRing) {
  for (std::size_t i = 8; i < 8 + sweep(32); ++i) {
    expect_context_bits(i, "ring");
    if (HasFatalFailure()) return;
  }
}

TEST(TensorSweep, MeshesHaveTheBitsOfTheirHeads) {
  for (std::size_t i = 8; i < 8 + sweep(32); ++i) {
    expect_context_bits(i, "all-to-all");
    if (HasFatalFailure()) return;
  }
}

TEST(TensorSweep, AnyMeshLoadsTheFilesOfAnyOther) {
  for (std::size_t from = 0; from < resharded_meshes().size(); ++from) expect_equal_states(from, 1);
  for (const std::size_t from : committing_meshes()) expect_equal_commits(from, 1);
}

TEST(TensorSweep, GradientsInBf16AreAsNearAsThoseOfOneRank) {
  for (std::size_t model = 0; model < kBf16Models; ++model) expect_near_in_bf16(model, 1);
}

}  // namespace
}  // namespace sluice::train
