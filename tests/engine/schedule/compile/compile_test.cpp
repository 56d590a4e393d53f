// Generated steps: validate accepts them, and they compute the same as the plain step.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// Steps of random options compute what the plain step does, in `timings` adverse timings and more.
// Returns how many were tried.
int expect_plain_steps(const StepModel& model, std::int32_t microbatches, std::uint64_t seeds,
                       std::size_t timings) {
  const Interpretation plain =
      interpret(compile(model, resident_options(model, microbatches), StepKind::kTraining));
  EXPECT_EQ(joined(plain.errors), "");
  EXPECT_TRUE(plain.norm.has_value());
  EXPECT_EQ(plain.losses.size(), static_cast<std::size_t>(microbatches));
  int tried = 0;
  for (std::uint64_t seed = 0; seed < seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Schedule schedule =
        compile(model, random_options(model, microbatches, seed), StepKind::kTraining);
    EXPECT_EQ(joined(validate(schedule)), "");
    for (const InterpretOptions& timing : adverse_timings(seed, timings)) {
      const Interpretation values = interpret(schedule, timing);
      EXPECT_EQ(joined(values.errors), "");
      EXPECT_TRUE(values.same_values(plain));
      ++tried;
    }
  }
  return tried;
}

TEST(Compile, EveryPlacementIsAcceptedAndComputesThePlainStepInAnyTiming) {
  int timings = 0;
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const std::int32_t microbatches : {1, 2, 3}) {
        timings += expect_plain_steps(example_model(2, tied, dtype), microbatches, 12, 2);
      }
    }
  }
  EXPECT_GT(timings, 1000);
}

// Split masters, 8-bit moments, no moments at all, sums of whole tensors.
TEST(Compile, EveryOptimizersStateIsStreamedToThePlainStepsValues) {
  for (const kernels::OptimizerOptions& optimizer : example_optimizers()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(kernels::optimizer_rule_name(optimizer.rule));
      expect_plain_steps(example_model(2, true, dtype, optimizer), 2, 10, 1);
    }
  }
}

TEST(Compile, EvaluationReadsTheWeightsAndChangesNothing) {
  const StepModel model = example_model(2, true, DType::kBF16);
  const Interpretation plain =
      interpret(compile(model, resident_options(model, 2), StepKind::kEvaluation));
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Schedule schedule = compile(model, random_options(model, 2, seed), StepKind::kEvaluation);
    ASSERT_EQ(joined(validate(schedule)), "");
    const Interpretation values = interpret(schedule);
    ASSERT_EQ(joined(values.errors), "");
    EXPECT_TRUE(values.same_values(plain));
  }
}

// A part is whole chunks, so that a unit of 101 comes in 51 parts of two.
TEST(Compile, AUnitOfManyChunksIsUploadedInAtMost64Parts) {
  StepModel model = example_model(2, false, DType::kBF16);
  UnitFootprint& large = model.units[1];
  constexpr std::uint64_t kChunk = 16384;
  large.elems = 101 * kChunk - 4096;
  large.norm_blocks_before = {};
  for (std::uint64_t block = 0; block <= large.elems / 4096; ++block) {
    large.norm_blocks_before.push_back(block);
  }
  const StepOptions options = example_options(model, Tier::kPinned, Tier::kDevice, Tier::kPinned);
  ASSERT_EQ(options.chunk_bytes, kChunk * dtype_bytes(model.dtype));
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  EXPECT_EQ(joined(validate(schedule)), "");
  std::map<BufferId, std::vector<std::uint64_t>> sizes;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kUpload || instruction.unit != 1) continue;
    const Use& window = instruction.writes.front();
    if (!schedule.buffers[window.buffer].window) continue;
    std::vector<std::uint64_t>& of_window = sizes[window.buffer];
    EXPECT_EQ(window.offset_bytes, of_window.size() * 2 * options.chunk_bytes);
    of_window.push_back(instruction.bytes);
  }
  EXPECT_FALSE(sizes.empty());
  for (const auto& [window, of_window] : sizes) {
    EXPECT_EQ(of_window.size(), 51u);
    EXPECT_EQ(std::accumulate(of_window.begin(), of_window.end(), std::uint64_t{0}),
              large.elems * dtype_bytes(model.dtype));
  }
}

}  // namespace
}  // namespace sluice::schedule
