// Reduced values are the whole, as terms: what each segment reads is made of the values of all ranks of
// its group, and any mesh ends with the terms of its group alone.
#include <gtest/gtest.h>

#include "tests/engine/schedule/world/tensor_worlds.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// A sample of the sweep (law1/tensor_sweep.cpp).
TEST(TensorWorld, AnyMeshMakesTheTermsOfItsGroup) {
  constexpr std::size_t kStride = 523;  // coprime to every digit of the meshes
  std::size_t tried = 0;
  for (std::size_t i = 0; tried < sweep(24); ++i) {
    tried += expect_groups_terms(tensor_world(i * kStride % kTensorWorlds)) ? 1 : 0;
    if (HasFailure()) return;
  }
}

// --- mutations -----------------------------------------------------------------------------------

Interpretation values_of(const Schedule& schedule) {
  InterpretOptions options;
  options.timing = Timing::kListOrder;
  return interpret(schedule, options);
}

// A fault in one rank's collective makes other terms, whichever it is.
TEST(TensorWorld, AValueThatIsNotTheWholeMakesOtherTerms) {
  for (const GroupStyle style : {GroupStyle::kTensor, GroupStyle::kRows, GroupStyle::kContext}) {
    TensorWorld at;
    at.style = style;
    const StepModel model = units_of_world(at);
    const Schedule world =
        compile_world(model, resident_options(model, 1), StepKind::kTraining, at);
    const Interpretation right = values_of(world);
    ASSERT_EQ(joined(right.errors), "");
    int tried = 0;
    for (InstructionId i = 0; i < world.instructions.size(); ++i) {
      const Instruction& instruction = world.instructions[i];
      if (instruction.lane != Lane::kInner || instruction.op != Op::kAllReduce) continue;
      if (instruction.rank != 1) continue;
      SCOPED_TRACE(std::to_string(static_cast<int>(style)) + ", instruction " + std::to_string(i) +
                   " of unit " + std::to_string(instruction.unit));
      // Half of the value.
      Schedule half = world;
      Use& read = half.instructions[i].reads.front();
      read.bytes /= 2;
      half.instructions[i].writes.front().bytes = read.bytes;
      EXPECT_FALSE(values_of(half).same_values(right));
      // Another operation.
      Schedule other = world;
      CutKind& kind = other.instructions[i].reduction;
      kind = kind == CutKind::kGather ? CutKind::kExchange : CutKind::kGather;
      EXPECT_FALSE(values_of(other).same_values(right));
      ++tried;
    }
    EXPECT_GT(tried, 10);
  }
}

}  // namespace
}  // namespace sluice::schedule
