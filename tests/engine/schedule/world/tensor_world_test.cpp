// Reduced values are the whole, as terms: what each segment reads is made of the values of all
// ranks of its group, and any mesh ends with the terms of its group alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/engine/schedule/world/tensor_worlds.hpp"
#include "tests/support/mutate_schedule.hpp"
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
  for (const GroupStyle style :
       {GroupStyle::kTensor, GroupStyle::kRows, GroupStyle::kContext, GroupStyle::kGrid}) {
    TensorWorld at;
    at.style = style;
    if (style == GroupStyle::kGrid) at.group = 4;
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

// The hops of one pass, after the same segment on every rank of a ring.
std::vector<std::vector<std::size_t>> hops_of(const Schedule& world) {
  // By group, and by the number of the hop in the lists of its ranks.
  std::map<std::pair<std::int32_t, std::size_t>, std::vector<std::size_t>> hops;
  std::map<std::int32_t, std::size_t> found;  // by rank
  for (const Instruction& instruction : world.instructions) {
    if (instruction.lane != Lane::kInner || instruction.reduction != CutKind::kRing) continue;
    hops[{instruction.group, found[instruction.rank]++}].push_back(instruction.id);
  }
  std::vector<std::vector<std::size_t>> lists;
  for (auto& [place, members] : hops) lists.push_back(std::move(members));
  return lists;
}

// The compute instruction of each rank that comes after its hop.
std::vector<std::size_t> parts_after(const Schedule& world, const std::vector<std::size_t>& hop) {
  std::vector<std::size_t> parts;
  for (const std::size_t member : hop) {
    for (std::size_t i = member; i < world.instructions.size(); ++i) {
      const Instruction& next = world.instructions[i];
      if (next.rank != world.instructions[member].rank || next.lane != Lane::kCompute ||
          next.op == Op::kRelease) {
        continue;
      }
      parts.push_back(i);
      break;
    }
  }
  return parts;
}

Schedule without(const Schedule& world, const std::vector<std::size_t>& dropped) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < world.instructions.size(); ++i) {
    if (std::find(dropped.begin(), dropped.end(), i) == dropped.end()) order.push_back(i);
  }
  return with_order(world, order);
}

Schedule doubled(const Schedule& world, const std::vector<std::size_t>& twice) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < world.instructions.size(); ++i) {
    order.push_back(i);
    if (std::find(twice.begin(), twice.end(), i) != twice.end()) order.push_back(i);
  }
  return with_order(world, order);
}

// Keys go round once: a hop or the part after it that is left out or done twice, on all ranks of
// the ring alike, make other terms.
TEST(TensorWorld, ARingThatMissesAKeyMakesOtherTerms) {
  for (const std::int32_t ranks : {2, 4}) {
    TensorWorld at;
    at.style = ranks == 2 ? GroupStyle::kGridRing : GroupStyle::kRing;
    at.group = 4;
    const StepModel model = units_of_world(at);
    const Schedule world =
        compile_world(model, resident_options(model, 1), StepKind::kTraining, at);
    const Interpretation right = values_of(world);
    ASSERT_EQ(joined(right.errors), "");
    const auto hops = hops_of(world);
    // Each block, of each ring: one turn of keys in forward, one of keys and one of gradients back.
    const std::size_t rings = 4 / static_cast<std::size_t>(at.contexts());
    EXPECT_EQ(hops.size(), rings * 2 * 3 * static_cast<std::size_t>(at.contexts() - 1));
    for (std::size_t i = 0; i < hops.size(); i += samples_sweeps() ? 5 : 1) {
      SCOPED_TRACE("ring of " + std::to_string(at.contexts()) + ", hop " + std::to_string(i));
      ASSERT_EQ(hops[i].size(), static_cast<std::size_t>(at.contexts()));
      const std::vector<std::size_t> parts = parts_after(world, hops[i]);
      std::vector<std::size_t> both = hops[i];
      both.insert(both.end(), parts.begin(), parts.end());
      EXPECT_FALSE(values_of(without(world, hops[i])).same_values(right));
      EXPECT_FALSE(values_of(without(world, parts)).same_values(right));
      EXPECT_FALSE(values_of(without(world, both)).same_values(right));
      EXPECT_FALSE(values_of(doubled(world, hops[i])).same_values(right));
      EXPECT_FALSE(values_of(doubled(world, parts)).same_values(right));
    }
  }
}

}  // namespace
}  // namespace sluice::schedule
