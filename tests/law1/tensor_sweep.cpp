// Meshes of tensor groups with data-parallel ranks and stages, every ZeRO stage, recomputation and all
// places of state: each has the bits of its tensor group alone.
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

}  // namespace
}  // namespace sluice::train
